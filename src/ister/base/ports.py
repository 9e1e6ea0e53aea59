"""The ports of the doors, and where a client looks for a broker."""

NATIVE_PORT = 6655
HTTP_PORT = 8655
# Those of Danube, whose clients come here.
GRPC_PORT = 6650
ADMIN_PORT = 50051

DEFAULT_URL = f"ister://127.0.0.1:{NATIVE_PORT}"
