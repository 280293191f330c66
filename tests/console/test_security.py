"""Who may use the console (spec 8.2): loopback without a login, everything else with one."""

from __future__ import annotations

import pytest

from kohort.console.web.security import COOKIE, Guard, is_loopback, session_cookie
from kohort.errors import ConfigError

TOKEN = "a-token-of-some-length"


def test_beyond_this_machine_a_token_is_needed() -> None:
    for host in ("0.0.0.0", "10.0.0.5", "::", "broker.example.org"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="KOHORT_CONSOLE_TOKEN"):
            Guard(host)
        assert Guard(host, TOKEN).login_needed
    with pytest.raises(ConfigError, match="12 characters"):
        Guard("0.0.0.0", "short")
    assert not Guard("127.0.0.1").login_needed


def test_another_name_for_this_machine_is_refused() -> None:
    """DNS rebinding: a page of another site whose name resolves to 127.0.0.1."""
    guard = Guard("127.0.0.1")
    assert guard.host_is_ours("127.0.0.1:8088")
    assert guard.host_is_ours("localhost:8088")
    assert guard.host_is_ours("[::1]:8088")
    assert not guard.host_is_ours("evil.example:8088")
    assert not guard.host_is_ours("127.0.0.1.evil.example")
    assert not guard.host_is_ours("")
    assert not guard.host_is_ours("[")


def test_a_cookie_has_the_port_that_the_browser_sees() -> None:
    assert session_cookie("127.0.0.1:8088") == session_cookie("[::1]:8088") == f"{COOKIE}_8088"
    for host in ("console.example.org", "[::1]", "", "localhost:", "localhost:http; a=b"):
        assert session_cookie(host) == COOKIE


def test_sessions_and_form_tokens_are_of_one_process() -> None:
    guard, other = Guard("127.0.0.1"), Guard("127.0.0.1")
    session = guard.new_session()
    assert guard.session_is_ours(session)
    assert not other.session_is_ours(session)
    assert not guard.session_is_ours(session + "0")
    assert not guard.session_is_ours(None)
    assert not guard.session_is_ours("name.\xe4")
    form = {"form_token": guard.form_token(session)}
    here = "127.0.0.1:8088"
    assert guard.post_is_ours(session, form, f"http://{here}", here)
    assert guard.post_is_ours(session, form, None, here)
    assert not guard.post_is_ours(session, form, "http://evil.example", here)
    assert not guard.post_is_ours(session, form, "http://[", here)
    assert not guard.post_is_ours(session, {}, f"http://{here}", here)
    assert not guard.post_is_ours(session, {"form_token": "\xe4"}, f"http://{here}", here)
    assert not guard.post_is_ours(None, form, f"http://{here}", here)
    assert not guard.post_is_ours(guard.new_session(), form, f"http://{here}", here)
