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
from quorate.report.live import page as live_page
from quorate.report.live.page import LivePage
from quorate.report.live.server import LiveServer
from quorate.report.schema import Summary
from quorate.report.summary import summarize, write_report
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


def test_the_page_is_that_of_the_report_below_the_state_of_the_run(server: LiveServer) -> None:
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.port}/[\w-]{{24}}/", server.address)
    status, page, headers = got(server, f"/{server.token}/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    for words in ("connect-src 'self'", "default-src 'none'", "frame-ancestors 'none'"):
        assert words in headers["Content-Security-Policy"]
    for words in ("train-1", "all-reduce", "steps/s", "Rank 3 arrived last"):
        assert words in page
    assert parsed(page).one(id="sections").attributes["data-next"] == "0", "made when the browser asks for them"
    status, state, _ = got(server, f"/{server.token}/state")
    assert status == 200 and state in page and "data-next" not in state
    status, sections, _ = got(server, f"/{server.token}/sections")
    written = parsed(write_report(server.page.run.folder).read_text())
    shown = {section.attributes["id"]: section.text for section in parsed(sections).all("section")}
    reported = {section.attributes["id"]: section.text for section in written.all("section")}
    del shown["reproduce"], reported["reproduce"]  # the report links to its data
    assert shown == reported and {"verdict", "timeline", "quality", "arrival"} <= shown.keys()
    page = got(server, f"/{server.token}/")[1]
    assert sections in page and not re.search(r"(?:src|href)=\"(?!#)", page), "nothing is loaded from elsewhere"


def test_of_a_long_run_the_sections_are_made_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now, cost = make_run(tmp_path, steps=20), [100.0], [0.0]
    (folder / "outcome.json").unlink()
    for path in folder.glob("rank-*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    made = []

    def summarized(folder: Path, **options: object) -> Summary:
        made.append(now[0])
        cost[0] += 3.0
        return summarize(folder, is_live=True)

    monkeypatch.setattr(live_page, "summarize", summarized)
    monkeypatch.setattr(live_page.time, "thread_time", lambda: cost[0])
    page = LivePage(folder, now=lambda: now[0])
    page.state()
    for now[0] in (100.0, 102.0, 159.0, 161.0):
        assert 'data-next="60.0"' in page.sections()[:80]
    assert made == [100.0, 161.0]
    assert "no outcome" not in page.sections() and "under way" in page.sections()


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
        LiveServer(server.page.run.folder, port=server.port)


def test_it_follows_a_run_that_goes_on(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=60), tmp_path / "run"
    folder.mkdir()
    with LiveServer(folder) as server:
        assert "starting" in got(server, f"/{server.token}/")[1]
        assert "No step has been recorded yet" in got(server, f"/{server.token}/sections")[1]
        server.page.run._listed = server.page._due = float("-inf")
        shutil.copy(made / "run.json", folder)
        for rank in range(4):
            shutil.copy(records_of(made, rank), folder)
        state = got(server, f"/{server.token}/state")[1]
        assert "step 60 " in state and "every worker has ended" in state
        sections = got(server, f"/{server.token}/sections")[1]
        assert "Arrival skew" in sections and "data-next" not in sections[:80]


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "x", about={"strategy": "<script>alert(1)</script>"})
    with open(records_of(folder, 0), "a") as file:
        file.write(
            json.dumps(
                {
                    "kind": "gone",
                    "time": 1.0,
                    "rank": 1,
                    "host": "h",
                    "reason": "<b>",
                    "round": 1,
                    "generation": 1,
                    "left": 3,
                }
            )
            + "\n"
        )
    live = LivePage(folder)
    live.state()
    live.sections()
    page = live.document()
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Tags().feed(page)
    assert tags.count("script") == 1 and "&lt;b&gt;" in page
