#!/usr/bin/env node
// Processes on an exec-server with nothing but a WebSocket.
//
//   node client.mjs URL PROGRAM [ARGUMENT]...   runs it there: streams apart, its exit code is ours
//   node client.mjs URL                         cuts its own link twice and checks that nothing was lost
//
// The token is that of the URL, or of the variable EXEC_SERVER_TOKEN.

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import WebSocket from "ws";

const ACK_BYTES = 1 << 20; // A quarter of the server's window: below that it need not wait for us.

/** The server answered with an error; `kind` is a word to branch on. */
class Failed extends Error {
  constructor(error) {
    super(error.message);
    this.kind = error.data.kind;
  }
}

/** The connection is gone. What it was about is not. */
class Cut extends Error {}

/** A session outlives its connections: whatever a cut interrupted is said again on the next one. */
class Session {
  #url;
  #id;
  #calls = 0;
  #waiting = new Map(); // Calls without an answer, by id.
  #events = [];
  #news = () => {}; // Called when an event has come, or the link is cut.

  static async open(url) {
    const session = new Session();
    session.#url = url;
    await session.#connect();
    return session;
  }

  async #connect() {
    const token = process.env.EXEC_SERVER_TOKEN;
    const ws = new WebSocket(this.#url, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    await new Promise((resolve, reject) => ws.once("open", resolve).once("error", reject));
    ws.on("error", () => {}).on("message", (text) => this.#hear(JSON.parse(text)));
    ws.on("close", () => {
      for (const { reject } of this.#waiting.values()) reject(new Cut());
      this.#waiting.clear();
      this.#news();
    });
    this.ws = ws;
    // `ack`: keep what we have not acknowledged. `gap`: say what is gone.
    const params = { clientName: "node-example", capabilities: { ack: true, gap: true } };
    // `takeover`: the server may not have missed our old connection yet.
    if (this.#id) Object.assign(params, { resumeSessionId: this.#id, takeover: true });
    this.#id = (await this.#ask("initialize", params)).sessionId;
    this.send({ method: "initialized" });
  }

  async #mend() {
    for (const seconds of [0, 0.1, 0.3, 1, 3, 10]) {
      await pause(seconds * 1000);
      try {
        return await this.#connect();
      } catch (error) {
        if (error instanceof Failed) throw error;
      }
    }
    throw new Error("the server cannot be reached any more");
  }

  /** What a broken network does, in the middle of whatever is under way. */
  cut() {
    this.ws.terminate();
  }

  send(message) {
    this.ws.send(JSON.stringify(message), () => {}); // A failure is a close, too.
  }

  #hear(message) {
    if (message.method) {
      this.#events.push(message);
      this.#news();
    } else {
      const call = this.#waiting.get(message.id);
      this.#waiting.delete(message.id);
      if (message.error) call?.reject(new Failed(message.error));
      else call?.resolve(message.result);
    }
  }

  #ask(method, params) {
    return new Promise((resolve, reject) => {
      if (this.ws.readyState !== WebSocket.OPEN) return reject(new Cut());
      const id = ++this.#calls;
      this.#waiting.set(id, { resolve, reject });
      this.send({ id, method, params });
    });
  }

  /** Asks until there is an answer. Only for what may be said twice: a write has its `writeId`, a start its name. */
  async call(method, params) {
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#ask(method, params);
      } catch (error) {
        // The first start worked, and its answer was lost.
        if (attempt && error.kind === "duplicateProcess") return {};
        if (!(error instanceof Cut)) throw error;
        await this.#mend();
      }
    }
  }

  async start(processId, argv, more = {}) {
    const env = { PATH: "/usr/local/bin:/usr/bin:/bin" };
    await this.call("process/start", { processId, argv, cwd: "/", env, tty: false, ...more });
  }

  /** Every event of a process, in order, once. After a cut the server sends again from our last acknowledgement. */
  async *follow(processId) {
    let [seen, unacknowledged] = [0, 0];
    for (;;) {
      if (!this.#events.length) {
        if (this.ws.readyState === WebSocket.OPEN) await new Promise((resolve) => (this.#news = resolve));
        else await this.#mend();
        continue;
      }
      const { method, params } = this.#events.shift();
      const last = params.toSeq ?? params.seq;
      if (params.processId !== processId || last <= seen) continue;
      yield { method, params };
      // Behind the yield: only what our caller has handled counts as taken.
      seen = last;
      unacknowledged += params.chunk?.length ?? 0;
      const over = method === "process/closed";
      if ((over || unacknowledged >= ACK_BYTES) && this.ws.readyState === WebSocket.OPEN) {
        unacknowledged = 0;
        this.send({ method: "process/ack", params: { processId, seq: seen } });
      }
      if (over) return;
    }
  }
}

async function run(session, argv) {
  let code;
  await session.start("run", argv);
  for await (const { method, params } of session.follow("run")) {
    if (method === "process/output") {
      const stream = params.stream === "stderr" ? process.stderr : process.stdout;
      // Waits for our reader, and so, through the acknowledgements, does the program.
      await new Promise((resolve) => stream.write(Buffer.from(params.chunk, "base64"), resolve));
    } else if (method === "process/gap") throw new Error(`${params.bytes} bytes of output are gone`);
    else if (method === "process/exited") code = params.exitCode;
  }
  return code;
}

async function check(session) {
  // It stops half-way for a word, so that the cuts are in the middle however fast anything is.
  const script = "seq 1 20000; read go; seq 20001 40000; echo $go >&2; exit 7";
  await session.start("job", ["sh", "-c", script], { pipeStdin: true });
  let [output, errors, code, told] = ["", "", undefined, false];
  for await (const { method, params } of session.follow("job")) {
    if (method === "process/output") {
      const text = Buffer.from(params.chunk, "base64").toString("latin1");
      if (params.stream === "stderr") errors += text;
      else output += text;
    } else if (method === "process/gap") throw new Error(`lost: ${JSON.stringify(params)}`);
    else if (method === "process/exited") code = params.exitCode;
    if (!told && output.endsWith("\n20000\n")) {
      told = true;
      // Sent and not answered: was it written? Nobody needs to know. The same id again settles it.
      const write = { processId: "job", chunk: Buffer.from("go\n").toString("base64"), writeId: "w1" };
      session.send({ id: "lost", method: "process/write", params: write });
      session.cut();
      assert.equal((await session.call("process/write", write)).status, "accepted");
      session.cut();
    }
  }
  const expected = Array.from({ length: 40000 }, (_, at) => `${at + 1}\n`).join("");
  assert.ok(output === expected, `${output.length} of ${expected.length} bytes, or others`);
  assert.deepEqual([errors, code], ["go\n", 7]);
  console.log("node: 40000 lines through 2 cuts, 1 write answered twice and done once, exit code 7");
  return 0;
}

const [url, ...argv] = process.argv.slice(2);
if (!url) {
  console.error("usage: node client.mjs URL [PROGRAM [ARGUMENT]...]");
  process.exit(2);
}
try {
  const session = await Session.open(url);
  const code = argv.length ? await run(session, argv) : await check(session);
  await session.call("session/end", {}); // Nobody comes back to it; else the server keeps it for a day.
  session.ws.close();
  process.exitCode = code;
} catch (error) {
  console.error(error.kind ? `${error.message} (${error.kind})` : error);
  process.exit(1);
}
