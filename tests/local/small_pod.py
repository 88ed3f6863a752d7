"""A trivially small program for pods: answers with its environment and files, crashes or hangs on request."""

import http.server
import json
import os
import signal
import sys
import time
from pathlib import Path


class Answers(http.server.BaseHTTPRequestHandler):
    healthy = True

    def do_GET(self) -> None:
        if self.path == "/crash":
            print("about to crash", file=sys.stderr, flush=True)
            os._exit(3)
        if self.path == "/sicken":
            Answers.healthy = False
        if self.path.startswith("/sleep/"):
            time.sleep(float(self.path.removeprefix("/sleep/")))
        ok = Answers.healthy or self.path != "/livez"
        if self.path == "/readyz":
            ok = not Path(os.environ.get("UNREADY_FILE", "/nowhere")).exists()
        body = json.dumps(self.facts()).encode()
        self.send_response(200 if ok else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def facts(self) -> dict[str, object]:
        files = {}
        for name in ("CONFIG_DIR", "MODEL_DIR"):
            folder = Path(os.environ[name]) if name in os.environ else None
            if folder is not None and folder.is_dir():
                files[name] = {f.name: f.read_text() for f in sorted(folder.iterdir()) if f.is_file()}
        return {"pid": os.getpid(), "env": dict(os.environ), "argv": sys.argv[1:], "files": files}

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # a stopping server answers what it has accepted

    def server_bind(self) -> None:
        http.server.socketserver.TCPServer.server_bind(self)  # no look-up of the host's name


def main() -> None:
    server = Server((os.environ["NLLB_HOST"], 8000), Answers)
    if os.environ.get("STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    try:
        server.serve_forever(poll_interval=0.05)
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
