"""MCP servers whose tools this process calls: `MCPServer` for one, `load_mcp_config` for those in an `mcp.json`.

The official client, the extra `mcp`, is imported when the first server starts. May import `tools`, `messages`, `stream`
and the modules at the root of `sidestream`.
"""

from sidestream.mcp.auth.settings import (
    AuthorizationCode,
    ClientCredentials,
    IdentityAssertion,
    OAuth,
    PrivateKeyJWT,
    SignInFailedError,
)
from sidestream.mcp.auth.token_store import KeyringTokens, MemoryTokens, SignIn, TokenFiles, TokenStore
from sidestream.mcp.client.callbacks import Elicitation, SamplingAnswer, SamplingRequest
from sidestream.mcp.client.server import MCPServer
from sidestream.mcp.config.file import MCPConfig, load_mcp_config
from sidestream.mcp.config.sign_ins import access_token, sign_out, use_sign_ins

__all__ = [
    "AuthorizationCode",
    "ClientCredentials",
    "Elicitation",
    "IdentityAssertion",
    "KeyringTokens",
    "MCPConfig",
    "MCPServer",
    "MemoryTokens",
    "OAuth",
    "PrivateKeyJWT",
    "SamplingAnswer",
    "SamplingRequest",
    "SignIn",
    "SignInFailedError",
    "TokenFiles",
    "TokenStore",
    "access_token",
    "load_mcp_config",
    "sign_out",
    "use_sign_ins",
]
