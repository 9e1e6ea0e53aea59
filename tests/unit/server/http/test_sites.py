"""HTTP requests are accepted by their host name, and refused from pages of other web sites."""

import pytest

from ister.base.errors import ForeignSiteError
from ister.server.http.sites import Sites

OWN = Sites(["localhost", "broker.local", "", "Box"])
# What a browser tells of somebody who follows a link, as from a dashboard to `/metrics`.
LINK = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


def scope(**headers: str) -> dict[str, object]:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return {"headers": named, "method": "GET"}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8655",
        "broker.local",
        "broker.local.:80",
        "box",
        "127.0.0.1:8655",
        "[::1]:8655",
        "10.2.3.4",
        "",
    ],
)
def test_own_names_and_ip_addresses_are_accepted(host: str) -> None:
    OWN.check_host(scope(host=host) if host else scope())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8655", "localhost.evil.example"])
def test_another_name_that_points_at_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ForeignSiteError, match="http-allowed-hosts"):
        OWN.check_host(scope(host=host))


@pytest.mark.parametrize("host", ["[::1", "a b", "@localhost@evil"])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(ForeignSiteError):
        OWN.check_host(scope(host=host))


@pytest.mark.parametrize(
    "listed",
    [
        "ister.example",
        " Ister.Example. ",
        "ister.example:8655",
        "http://ister.example:8655",
        "https://ister.example/",
    ],
)
def test_names_may_be_listed_as_a_browser_shows_them(listed: str) -> None:
    sites = Sites(["localhost", listed])

    sites.check_host(scope(host="ister.example:8655"))
    sites.check_origin(scope(host="localhost:8655", origin="https://ister.example"))


@pytest.mark.parametrize("listed", ["::1", "[::1]:8655", "0.0.0.0", "10.2.3.4:8655"])
def test_listed_addresses_do_no_harm(listed: str) -> None:
    with pytest.raises(ForeignSiteError):
        Sites([listed]).check_host(scope(host="evil.example"))


def test_a_star_allows_every_name() -> None:
    Sites(["*"]).check_host(scope(host="anything"))


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"origin": "http://localhost:8655"}, False),
        ({"origin": "http://localhost:3000"}, True),
        ({"origin": "https://broker.local"}, False),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "cross-site", **LINK}, False),
        ({"sec_fetch_site": "cross-site", **LINK, "sec_fetch_dest": "iframe"}, True),
        ({"sec_fetch_site": "cross-site", **LINK, "sec_fetch_mode": "no-cors"}, True),
    ],
)
def test_a_page_of_another_site_is_refused(headers: dict[str, str], *, is_refused: bool) -> None:
    asked = scope(host="localhost:8655", **headers)
    if is_refused:
        with pytest.raises(ForeignSiteError):
            OWN.check_origin(asked)
    else:
        OWN.check_origin(asked)


def test_a_form_of_another_site_is_refused() -> None:
    asked = scope(host="localhost:8655", sec_fetch_site="cross-site", **LINK)

    with pytest.raises(ForeignSiteError):
        OWN.check_origin({**asked, "method": "POST"})
