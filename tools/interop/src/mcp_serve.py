"""The official Python SDK's client against `exec-server mcp serve`: all tools listed and called, in one session.

Usage: mcp_serve.py stdio FOLDER PROGRAM ARGS…   or   mcp_serve.py http FOLDER URL TOKEN
"""

import asyncio
import pathlib
import sys

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

TOOLS = [
    "run_command", "start_process", "read_output", "write_stdin", "signal_process", "list_processes",
    "read_file", "write_file", "edit_file", "list_directory", "search_files",
]


def attribute(thing, *names):
    """One of these, by the first name that this version of the SDK knows."""
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    raise AttributeError(names[0])


def connect(way, folder, rest):
    if way == "stdio":
        return stdio_client(StdioServerParameters(command=rest[0], args=rest[1:], cwd=folder))
    url, token = rest
    headers = {"Authorization": f"Bearer {token}"}
    try:
        from mcp.client.streamable_http import streamablehttp_client

        return streamablehttp_client(url, headers=headers)
    except ImportError:
        try:
            import httpx2 as httpx
        except ImportError:
            import httpx
        from mcp.client.streamable_http import streamable_http_client

        return streamable_http_client(url, http_client=httpx.AsyncClient(headers=headers, timeout=60))


async def use(session, folder):
    started = await session.initialize()
    assert attribute(started, "serverInfo", "server_info").name == "exec-server", started
    tools = (await session.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS, tools
    for tool in tools:
        assert tool.description and tool.annotations and attribute(tool, "outputSchema", "output_schema"), tool

    async def call(name, is_error=False, **arguments):
        # The SDK compares the structured result with the tool's schema.
        result = await session.call_tool(name, arguments)
        assert bool(attribute(result, "isError", "is_error")) == is_error, result
        assert result.content and result.content[0].text, result
        return attribute(result, "structuredContent", "structured_content")

    ran = await call("run_command", command="echo out; echo err >&2; exit 5")
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (5, "out\n", "err\n"), ran
    ran = await call("run_command", command=["printf", "%s", "a b"], env={"X": "1"}, cwd=".")
    assert ran["stdout"] == "a b", ran
    ran = await call("run_command", is_error=True, command="echo begun; sleep 1000", timeout_ms=700)
    assert ran["timed_out"] and ran["stdout"] == "begun\n", ran

    process = (await call("start_process", command="while read x; do echo got $x; done; exit 3"))["process_id"]
    await call("write_stdin", process_id=process, text="one\n")
    heard = await call("read_output", process_id=process, wait_ms=10000)
    assert heard["output"] == [{"stream": "stdout", "text": "got one\n"}], heard
    await call("write_stdin", process_id=process, close=True)
    while not heard["closed"]:
        heard = await call("read_output", process_id=process, wait_ms=10000)
    assert heard["exit_code"] == 3, heard
    other = (await call("start_process", command="sleep 1000"))["process_id"]
    assert (await call("signal_process", process_id=other))["was_running"]
    listed = (await call("list_processes"))["processes"]
    assert [row["process_id"] for row in listed] == [process, other], listed

    written = await call("write_file", path="sub/file.txt", content="one\ntwo\nthree\n")
    assert written["created"] and (folder / "sub/file.txt").read_text() == "one\ntwo\nthree\n", written
    read = await call("read_file", path="sub/file.txt", offset=2, limit=1)
    assert (read["content"], read["more"]) == ("two\n", True), read
    assert (await call("edit_file", path="sub/file.txt", old="two", new="2"))["replacements"] == 1
    await call("edit_file", is_error=True, path="sub/file.txt", old="two", new="2")
    assert (folder / "sub/file.txt").read_text() == "one\n2\nthree\n"
    listed = await call("list_directory", path="sub")
    assert [(row["name"], row["kind"]) for row in listed["entries"]] == [("file.txt", "file")], listed
    found = await call("search_files", pattern="th.ee", path="sub")
    assert [(row["path"], row["line"]) for row in found["lines"]] == [("sub/file.txt", 3)], found
    found = await call("search_files", glob="**/*.txt", path="sub")
    assert [row["path"] for row in found["paths"]] == ["sub/file.txt"], found
    await call("read_file", is_error=True, path="missing")


async def main():
    way, folder, rest = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    async with connect(way, folder, rest) as streams, ClientSession(streams[0], streams[1]) as session:
        await use(session, folder)
    print(f"python: {len(TOOLS)} tools over {way}")


asyncio.run(main())
