"""The static files of the web app are served by name and without sign-in, and no other file is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from api.tcp_server import ApiClient, open_api_client

from retinue.api.static_files import StaticFiles


@pytest.fixture
def web_build(tmp_path: Path) -> Path:
    (tmp_path / "web" / "assets").mkdir(parents=True)
    (tmp_path / "web" / "index.html").write_text("<!doctype html><title>retinue</title>")
    (tmp_path / "web" / "assets" / "index-abc.js").write_text("let it;" * 500)
    (tmp_path / "web" / ".built").write_text("a hash")
    (tmp_path / "secret.js").write_text("not ours to give")
    return tmp_path / "web"


def test_every_url_of_the_web_app_returns_its_page(web_build: Path) -> None:
    pages = StaticFiles(web_build)
    home = pages.find("/")
    assert home is not None and b"<title>" in home.body
    assert pages.find("/chat/0123abcd") is home
    assert dict(home.headers)[b"cache-control"] == b"no-cache"


def test_a_static_file_of_the_web_app_is_immutable_and_compressed(web_build: Path) -> None:
    script = StaticFiles(web_build).find("/assets/index-abc.js")
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
def test_a_path_outside_the_static_files_of_the_web_app_is_not_found(web_build: Path, path: str) -> None:
    assert StaticFiles(web_build).find(path) is None


def test_without_a_build_of_the_web_app_its_page_explains_how_to_build_it(web_build: Path, tmp_path: Path) -> None:
    pages = StaticFiles(tmp_path / "later")
    plain = pages.find("/chat")
    assert plain is not None and b"make web" in plain.body
    web_build.rename(tmp_path / "later")
    page = pages.find("/chat")
    assert page is not None and b"make web" not in page.body


def test_a_new_build_of_the_web_app_replaces_the_old_static_files(web_build: Path) -> None:
    pages = StaticFiles(web_build)
    (web_build / "assets" / "index-abc.js").rename(web_build / "assets" / "index-def.js")
    (web_build / "index.html").write_text("<!doctype html><title>newer</title>")
    assert pages.find("/assets/index-abc.js") is None
    assert pages.find("/assets/index-def.js") is not None
    home = pages.find("/")
    assert home is not None and b"newer" in home.body


def test_the_web_app_page_allows_no_foreign_content_and_is_not_sent_again_if_unchanged(tmp_path: Path) -> None:
    with open_api_client(tmp_path) as api_client:
        page = api_client.ask("GET", "/")
        policy = page.headers["content-security-policy"]
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert api_client.ask("GET", "/", headers={"if-none-match": page.headers["etag"]}).status == 304
        assert (
            _not_found(api_client, "GET", "/api/none")
            and _not_found(api_client, "GET", "/none.js")
            and _not_found(api_client, "POST", "/chat")
        )


def _not_found(api_client: ApiClient, method: str, path: str) -> bool:
    answer = api_client.ask(method, path)
    return (answer.status, answer.code) == (404, "route.not_found")
