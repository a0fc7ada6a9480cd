"""A server of models that speaks the chat completions of OpenAI, with faults; in this process or one of its own."""

from __future__ import annotations

import base64
import json
import random
import socket
import struct
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("429", "500", "cut", "no choices", "no json", "empty", "null", "no object", "late date", "reset")


class ModelServer(ThreadingHTTPServer):
    """Answers each question with its text's length; `faults` of ten requests fail, each in another way."""

    daemon_threads = True

    def __init__(self, faults: int = 0, log: str | None = None, models: tuple[str, ...] = ("mine",)) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.log, self.models = faults, log, models
        self.lot, self.lock = random.Random(0), threading.Lock()
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.keys: set[str | None] = set()
        self.status: int | None = None
        self.elsewhere: str | None = None
        self.refused_from: int | None = None

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": name} for name in self.server.models]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][-1]["content"]
        for block in content[:-1]:
            head, _, data = block["image_url"]["url"].partition(",")
            assert head == "data:image/png;base64"
            assert base64.b64decode(data).startswith(b"\x89PNG")
        text = content[-1]["text"]
        with self.server.lock:
            self.server.keys.add(self.headers.get("Authorization"))
            self.server.asked[text] += 1
            fails = self.server.lot.randrange(10) < self.server.faults
            fault = self.server.lot.choice(FAULTS) if fails else None
        if self.server.status is not None:
            elsewhere = {"Location": self.server.elsewhere} if self.server.elsewhere else {}
            said = {"error": {"message": "context length exceeded"}}
            self._send(self.server.status, json.dumps(said), **elsewhere)
            return
        if (
            self.server.refused_from is not None
            and sum(self.server.asked.values()) >= self.server.refused_from
        ):
            self._send(401, "no")
            return
        reply = json.dumps(
            {"choices": [{"message": {"role": "assistant", "content": f"{len(text)} letters"}}]}
        )
        if fault is None:
            with self.server.lock:
                self.server.answered[text] += 1
                if self.server.log:
                    with open(self.server.log, "a") as file:
                        file.write(json.dumps(text) + "\n")
            self._send(200, reply)
        elif fault in ("429", "500"):
            self._send(int(fault), "busy", **{"Retry-After": "0.01"})
        elif fault == "late date":
            self._send(503, "<html>busy</html>", **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply[:9].encode())
            self.close_connection = True
        else:
            texts = {
                "no choices": {"choices": []},
                "empty": {"choices": [{"message": {"content": " "}}]},
                "null": {"choices": [{"message": {"content": None, "refusal": "I cannot"}}]},
                "no object": ["choices"],
            }
            self._send(200, json.dumps(texts[fault]) if fault in texts else "<html>no json</html>")

    def _send(self, status: int, text: str, **headers: str) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ModelServer(faults=int(sys.argv[1]), log=sys.argv[2])
    print(server.url, flush=True)
    server.serve_forever()
