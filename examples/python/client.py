#!/usr/bin/env python3
"""Processes on an exec-server with nothing but a WebSocket.

    client.py URL PROGRAM [ARGUMENT]...   runs it there: streams apart, its exit code is ours
    client.py URL                         cuts its own link twice and checks that nothing was lost

The token is that of the URL, or of the variable EXEC_SERVER_TOKEN.
"""

import base64, collections, contextlib, itertools, json, os, socket, sys, time
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

ACK_BYTES = 1 << 20  # A quarter of the server's window: below that it need not wait for us.


class Failed(Exception):
    """The server answered with an error; `kind` is a word to branch on."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.kind = error["data"]["kind"]


class Session:
    """A session outlives its connections: whatever a cut interrupted is said again on the next one."""

    def __init__(self, url):
        self.url, self.id, self.ids = url, None, itertools.count(1)
        self.events = collections.deque()  # Those that came while an answer was awaited.
        self.link = contextlib.ExitStack()
        self.open()

    def open(self):
        token = os.environ.get("EXEC_SERVER_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.link.close()
        self.ws = self.link.enter_context(
            connect(self.url, additional_headers=headers, max_size=None, close_timeout=1)
        )
        # `ack`: keep what we have not acknowledged. `gap`: say what is gone.
        params = {"clientName": "python-example", "capabilities": {"ack": True, "gap": True}}
        if self.id:
            # The server may not have missed our old connection yet.
            params |= {"resumeSessionId": self.id, "takeover": True}
        self.id = self.ask("initialize", params)["sessionId"]
        self.send({"method": "initialized"})

    def mend(self):
        for pause in (0, 0.1, 0.3, 1, 3, 10):
            time.sleep(pause)
            try:
                return self.open()
            except (OSError, ConnectionClosed):
                continue
        raise ConnectionError("the server cannot be reached any more")

    def cut(self):
        """What a broken network does, in the middle of whatever is under way."""
        self.ws.socket.shutdown(socket.SHUT_RDWR)

    def send(self, message):
        self.ws.send(json.dumps(message))

    def ask(self, method, params):
        call = next(self.ids)
        self.send({"id": call, "method": method, "params": params})
        while True:
            message = json.loads(self.ws.recv())
            if "method" in message:
                self.events.append(message)
            elif message["id"] == call:
                if "error" in message:
                    raise Failed(message["error"])
                return message["result"]

    def call(self, method, params):
        """Asks until there is an answer. Only for what may be said twice: a write has its `writeId`, a start its name."""
        for attempt in itertools.count():
            try:
                return self.ask(method, params)
            except ConnectionClosed:
                self.mend()
            except Failed as error:
                if attempt and error.kind == "duplicateProcess":
                    return {}  # The first start worked, and its answer was lost.
                raise

    def start(self, process, argv, **more):
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        self.call("process/start", {"processId": process, "argv": argv, "cwd": "/", "env": env, "tty": False, **more})

    def write(self, process, data, write_id):
        params = {"processId": process, "chunk": base64.b64encode(data).decode(), "writeId": write_id}
        return self.call("process/write", params)["status"]

    def follow(self, process):
        """Every event of a process, in order, once. After a cut the server sends again from our last acknowledgement."""
        seen, unacknowledged = 0, 0
        while True:
            try:
                event = self.events.popleft() if self.events else json.loads(self.ws.recv())
            except ConnectionClosed:
                self.mend()
                continue
            params = event.get("params", {})
            if params.get("processId") != process or params.get("toSeq", params.get("seq", 0)) <= seen:
                continue
            yield event["method"], params
            # Behind the yield: only what our caller has handled counts as taken.
            seen = params.get("toSeq", params.get("seq"))
            unacknowledged += len(params.get("chunk", ""))
            over = event["method"] == "process/closed"
            if over or unacknowledged >= ACK_BYTES:
                unacknowledged = 0
                try:
                    self.send({"method": "process/ack", "params": {"processId": process, "seq": seen}})
                except ConnectionClosed:
                    pass  # The next receive sees it, and the next acknowledgement says it again.
            if over:
                return


def run(session, argv):
    session.start("run", argv)
    for method, params in session.follow("run"):
        if method == "process/output":
            stream = sys.stderr if params["stream"] == "stderr" else sys.stdout
            stream.buffer.write(base64.b64decode(params["chunk"]))
            stream.flush()
        elif method == "process/gap":
            sys.exit(f"{params['bytes']} bytes of output are gone")
        elif method == "process/exited":
            code = params["exitCode"]
    return code


def check(session):
    # It stops half-way for a word, so that the cuts are in the middle however fast anything is.
    script = "seq 1 20000; read go; seq 20001 40000; echo $go >&2; exit 7"
    session.start("job", ["sh", "-c", script], pipeStdin=True)
    output, errors, code, told = b"", b"", None, False
    for method, params in session.follow("job"):
        if method == "process/output":
            data = base64.b64decode(params["chunk"])
            output, errors = (output, errors + data) if params["stream"] == "stderr" else (output + data, errors)
        elif method == "process/gap":
            sys.exit(f"lost: {params}")
        elif method == "process/exited":
            code = params["exitCode"]
        if not told and output.endswith(b"\n20000\n"):
            told = True
            # Sent and not answered: was it written? Nobody needs to know. The same id again settles it.
            params = {"processId": "job", "chunk": base64.b64encode(b"go\n").decode(), "writeId": "w1"}
            session.send({"id": "lost", "method": "process/write", "params": params})
            session.cut()
            assert session.write("job", b"go\n", "w1") == "accepted"
            session.cut()
    expected = "".join(f"{number}\n" for number in range(1, 40001)).encode()
    assert (output, errors, code) == (expected, b"go\n", 7), (len(output), len(expected), errors, code)
    print("python: 40000 lines through 2 cuts, 1 write answered twice and done once, exit code 7")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    session = Session(sys.argv[1])
    try:
        code = run(session, sys.argv[2:]) if sys.argv[2:] else check(session)
    except Failed as error:
        sys.exit(f"{error} ({error.kind})")
    session.call("session/end", {})  # Nobody comes back to it; else the server keeps it for a day.
    session.link.close()
    sys.exit(code)
