"""Our client, as the public conformance suite for MCP clients drives it: the server's URL is the last argument.

This folder has no `__init__.py`: it would shadow the package `mcp`.
"""

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import httpx2

from sidestream import MCPServer, ToolContext
from sidestream.mcp import ClientCredentials, IdentityAssertion, MemoryTokens, PrivateKeyJWT
from sidestream.mcp.auth.settings import Auth
from support.mcp_servers.signed_in import Browser

Context = dict[str, Any]
ARGUMENTS: dict[str, Any] = {"integer": 5, "number": 5, "string": "text", "boolean": True, "array": [], "object": {}}


async def drive(url: str, scenario: str, context: Context) -> None:
    """Lists the tools and calls each. Raises SidestreamError."""
    auth = await auth_for(url, scenario, context) if scenario.startswith("auth/") else None
    async with MCPServer("conformance", url=url, auth=auth, on_elicitation=lambda _: True) as server:
        tools = await server.list()
        calls = context.get("toolCalls") or [
            {"name": tool.name, "arguments": arguments_for(tool.parameters)} for tool in tools
        ]
        named = {tool.name: tool for tool in tools}
        for call in calls:
            await named[call["name"]].run(call["arguments"], ToolContext("call", call["name"]))


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """A value for each property that needs one."""
    properties: dict[str, Any] = schema.get("properties", {})
    return {
        name: ARGUMENTS.get(properties.get(name, {}).get("type"), "text") for name in schema.get("required", properties)
    }


async def auth_for(url: str, scenario: str, context: Context) -> Auth:
    match scenario:
        case "auth/client-credentials-basic":
            return ClientCredentials(
                client_id=context["client_id"], client_secret=context["client_secret"], issuer=None
            )
        case "auth/client-credentials-jwt":
            return PrivateKeyJWT(
                client_id=context["client_id"],
                private_key=context["private_key_pem"],
                algorithm=context["signing_algorithm"],
                issuer=None,
            )
        case "auth/enterprise-managed-authorization" | "auth/cross-app-access-complete-flow":
            return await identity_assertion(url, context)
        case "auth/pre-registration":
            registered = {name: context[name] for name in ("client_id", "client_secret")}
            issuer = context.get("issuer") or await issuer_of(url)
            return Browser().auth(tokens=MemoryTokens(), issuer=issuer, **registered)
        case _:
            document = "https://conformance-test.local/client-metadata.json"
            return Browser().auth(tokens=MemoryTokens(), client_metadata_url=document)


async def identity_assertion(url: str, context: Context) -> Auth:
    async def assertion(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": context["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": context["idp_client_id"],
            "audience": audience,
            "resource": resource,
        }
        async with httpx2.AsyncClient(timeout=60) as client:
            answer = await client.post(context["idp_token_endpoint"], data=form)
        return answer.raise_for_status().json()["access_token"]

    return IdentityAssertion(
        client_id=context["client_id"],
        client_secret=context["client_secret"],
        issuer=await issuer_of(url),
        assertion=assertion,
        method="client_secret_basic",
    )


async def issuer_of(url: str) -> str:
    """What an administrator would have configured."""
    parts = urlsplit(url)
    async with httpx2.AsyncClient(timeout=60) as client:
        for path in (f"/.well-known/oauth-protected-resource{parts.path}", "/.well-known/oauth-protected-resource"):
            answer = await client.get(f"{parts.scheme}://{parts.netloc}{path}")
            if answer.status_code == 200:
                return answer.json()["authorization_servers"][0]
    return f"{parts.scheme}://{parts.netloc}"


if __name__ == "__main__":
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    asyncio.run(drive(sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), given))
