"""The schema registry for the blocking client."""

from ister.client import aio
from ister.client.sync.blocking import Blocking, blocking


class Schemas(Blocking[aio.Schemas]):
    """The schema registry.

    >>> order = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    >>> client.schemas.register("orders", ister.Schema("json_schema", order))
    Registration(schema_id=1, version=1, is_new=True, fingerprint='sha256:...')
    >>> client.schemas.latest("orders").version
    1
    """

    register = blocking(aio.Schemas.register)
    check = blocking(aio.Schemas.check)
    get = blocking(aio.Schemas.get)
    latest = blocking(aio.Schemas.latest)
    versions = blocking(aio.Schemas.versions)
    describe = blocking(aio.Schemas.describe)
    delete = blocking(aio.Schemas.delete)
    set_mode = blocking(aio.Schemas.set_mode)
    bind = blocking(aio.Schemas.bind)
    unbind = blocking(aio.Schemas.unbind)
    binding = blocking(aio.Schemas.binding)
    list = blocking(aio.Schemas.list)
