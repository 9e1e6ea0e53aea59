"""The settings of a broker: one table for options, variables, the TOML file, help and guide.

Light to import: the command line shows it without loading a broker.
"""

from ister.config.config import (
    DEFAULT_DATA,
    GrpcConfig,
    HttpConfig,
    LogConfig,
    NativeConfig,
    SecurityConfig,
    ServerConfig,
    ShutdownConfig,
    StorageConfig,
    all_settings,
)
from ister.config.reading import read_config
from ister.config.settings import Setting

__all__ = [
    "DEFAULT_DATA",
    "GrpcConfig",
    "HttpConfig",
    "LogConfig",
    "NativeConfig",
    "SecurityConfig",
    "ServerConfig",
    "Setting",
    "ShutdownConfig",
    "StorageConfig",
    "all_settings",
    "read_config",
]
