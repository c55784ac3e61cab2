"""A local server that speaks chat completions, and misbehaves when it is told to."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPLY = "```python\ndef workload(x):\n    return x\n```"


class Endpoint:
    """Serves `script`, one entry per request, then answers normally.

    Entries: "ok", ("status", code, headers, body), ("slow", seconds), "cut", "nonsense".
    """

    def __init__(self, *script):
        self.script, self.bodies, self.headers, self.times = list(script), [], [], []
        self.at_once, self.most_at_once = 0, 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.serve(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def serve(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self.lock:
            self.bodies.append(body)
            self.headers.append({k.lower(): v for k, v in handler.headers.items()})
            self.times.append(time.monotonic())
            step = self.script.pop(0) if self.script else "ok"
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.answer(handler, step)
        except OSError:  # the client has gone
            pass
        finally:
            with self.lock:
                self.at_once -= 1

    def answer(self, handler, step):
        kind, *rest = (step,) if isinstance(step, str) else step
        if kind == "slow":
            time.sleep(rest[0])
        if kind == "status":
            code, headers, text = rest
            self.send(handler, code, json.dumps(text).encode(), headers)
            return
        if kind == "nonsense":
            self.send(handler, 200, b'{"object": "chat.completion", "choices": []}')
            return
        data = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "local",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": REPLY},
                    }
                ],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200},
            }
        ).encode()
        self.send(handler, 200, data, cut=kind == "cut")

    def send(self, handler, code, data, headers=(), cut=False):
        handler.send_response(code)
        for name, value in dict(headers).items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.close()
