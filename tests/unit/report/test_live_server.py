"""The live page as a browser asks for it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.records.records import records_of
from quorate.report.live.page import live_document
from quorate.report.live.run import LiveRun
from quorate.report.live.server import LiveServer
from tests.support.made_records import make_run
from tests.support.parsed_pages import parsed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(make_run(tmp_path / "train-1", steps=60)) as server:
        yield server


def got(
    server: LiveServer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    response = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return response


def test_the_page_and_what_changes_of_it(server: LiveServer) -> None:
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.port}/[\w-]{{24}}/", server.address)
    status, page, headers = got(server, f"/{server.token}/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for words in ("train-1", "steps per second", "loss of rank 0", "Rank 3 is 1", "bytes sent per second of rank 0, "):
        assert words.partition(",")[0] in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page), "nothing is loaded from elsewhere"
    status, state, _ = got(server, f"/{server.token}/state")
    assert status == 200 and state in page and "data-ended" in state
    assert parsed(page) is not None


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/state", "/%C3%A9/", "//", "/../../etc/passwd"])
def test_without_the_token_there_is_one_sentence(server: LiveServer, path: str) -> None:
    status, words, _ = got(server, path)
    assert status == 403 and words.startswith("This address does not hold the token of the run") and "\n" not in words


def test_a_page_of_elsewhere_cannot_read_it(server: LiveServer) -> None:
    assert got(server, f"/{server.token}/", host="evil.example")[0] == 403
    assert got(server, f"/{server.token}/", host=f"evil.example:{server.port}")[0] == 403
    assert got(server, f"/{server.token}/", host="localhost:8000")[0] == 200, "forwarded by ssh"


def test_it_answers_nothing_else(server: LiveServer) -> None:
    assert got(server, f"/{server.token}/run.json")[0] == 404
    assert got(server, f"/{server.token}/", method="POST")[0] == 501


def test_a_port_that_is_taken(server: LiveServer) -> None:
    with pytest.raises(ConfigurationError, match=rf"port {server.port} of 127.0.0.1 .* leave out --port"):
        LiveServer(server._run.folder, port=server.port)


def test_it_follows_a_run_that_goes_on(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=60), tmp_path / "run"
    folder.mkdir()
    with LiveServer(folder) as server:
        assert "Starting" in got(server, f"/{server.token}/")[1]
        server._run._listed = float("-inf")
        shutil.copy(made / "run.json", folder)
        for rank in range(4):
            shutil.copy(records_of(made, rank), folder)
        state = got(server, f"/{server.token}/state")[1]
        assert ">60<" in state and "every worker has ended" in state


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "x", about={"script": "<script>alert(1)</script>"})
    with open(records_of(folder, 0), "a") as file:
        file.write(json.dumps({"kind": "log", "step": 1, "time": 1001.0, "values": {"<b>": 1.0}}) + "\n")
    run = LiveRun(folder)
    run.look()
    page = live_document(run)
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Tags().feed(page)
    assert tags.count("script") == 1 and "&lt;b&gt;" in page
