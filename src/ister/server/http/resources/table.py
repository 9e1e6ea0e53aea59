"""All routes of the API, in the order of the documentation."""

from ister.server.http.resources.messages import MESSAGES
from ister.server.http.resources.namespaces import BROKERS, NAMESPACES
from ister.server.http.resources.schemas import BINDINGS, SCHEMAS
from ister.server.http.resources.subscriptions import SUBSCRIPTIONS
from ister.server.http.resources.topics import TOPICS
from ister.server.http.routes import Routes

ROUTES = Routes()
ROUTES.include([NAMESPACES, TOPICS, MESSAGES, SUBSCRIPTIONS, SCHEMAS, BINDINGS, BROKERS])
