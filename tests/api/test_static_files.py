"""The page of the house: served whole, by name, to whoever asks, and nothing beside it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from api.tcp_server import Rim, open_rim

from retinue.api.static_files import StaticFiles


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "web" / "assets").mkdir(parents=True)
    (tmp_path / "web" / "index.html").write_text("<!doctype html><title>retinue</title>")
    (tmp_path / "web" / "assets" / "index-abc.js").write_text("let it;" * 500)
    (tmp_path / "web" / ".built").write_text("a hash")
    (tmp_path / "secret.js").write_text("not ours to give")
    return tmp_path / "web"


def test_every_address_within_the_page_is_the_page(built: Path) -> None:
    pages = StaticFiles(built)
    home = pages.find("/")
    assert home is not None and b"<title>" in home.body
    assert pages.find("/chat/0123abcd") is home
    assert dict(home.headers)[b"cache-control"] == b"no-cache"


def test_a_file_is_kept_for_good_and_sent_small(built: Path) -> None:
    script = StaticFiles(built).find("/assets/index-abc.js")
    assert script is not None and script.gzipped is not None
    assert b"immutable" in dict(script.headers)[b"cache-control"]
    assert gzip.decompress(script.gzipped) == script.body and len(script.gzipped) < len(script.body)


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.js",
        "/assets/../../secret.js",
        "/.built",
        "/assets/none.js",
        "/assets/",
        "/no.such",
        "//etc/passwd.js",
    ],
)
def test_what_is_no_file_of_the_page_is_not_there(built: Path, path: str) -> None:
    assert StaticFiles(built).find(path) is None


def test_without_a_build_a_plain_page_says_how_until_there_is_one(built: Path, tmp_path: Path) -> None:
    pages = StaticFiles(tmp_path / "later")
    plain = pages.find("/chat")
    assert plain is not None and b"make web" in plain.body
    built.rename(tmp_path / "later")
    page = pages.find("/chat")
    assert page is not None and b"make web" not in page.body


def test_a_page_that_is_built_anew_takes_its_old_files_with_it(built: Path) -> None:
    pages = StaticFiles(built)
    (built / "assets" / "index-abc.js").rename(built / "assets" / "index-def.js")
    (built / "index.html").write_text("<!doctype html><title>newer</title>")
    assert pages.find("/assets/index-abc.js") is None
    assert pages.find("/assets/index-def.js") is not None
    home = pages.find("/")
    assert home is not None and b"newer" in home.body


def test_the_page_loads_nothing_but_itself_and_is_not_sent_twice(tmp_path: Path) -> None:
    with open_rim(tmp_path) as rim:
        page = rim.ask("GET", "/")
        policy = page.headers["content-security-policy"]
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert rim.ask("GET", "/", headers={"if-none-match": page.headers["etag"]}).status == 304
        assert (
            _not_found(rim, "GET", "/api/none")
            and _not_found(rim, "GET", "/none.js")
            and _not_found(rim, "POST", "/chat")
        )


def _not_found(rim: Rim, method: str, path: str) -> bool:
    answer = rim.ask(method, path)
    return (answer.status, answer.code) == (404, "route.not_found")
