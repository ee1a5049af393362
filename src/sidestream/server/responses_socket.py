"""stub"""

from starlette.websockets import WebSocket


async def responses_socket(websocket: WebSocket) -> None: ...
