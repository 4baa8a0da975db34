"""What other machines reach of a SuperLink: what nodes need, and nothing that could start runs or register nodes."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

import httpx
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet.router import fleet_push_messages
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.exceptions import HTTPException

from sparsona.fleet import FleetError, superlink
from sparsona.fleet.flower import GatekeeperApp, own_answers
from sparsona.fleet.home import Home
from sparsona.fleet.processes import Child, environment, free_port
from sparsona.fleet.superlink import start_superlink

OTHERS = ["192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7", "", "localhost", "127.0.0.1.example.org"]
HERE = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"]


@pytest.fixture(scope="module")
def app():
    """Flower's own service."""
    return GatekeeperApp(create_app())


def asked(app, who, path):
    """What comes of a request by somebody; it takes no network."""

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(who, 1234))) as client:
            return await client.post(f"https://192.0.2.1{path}", content=b"")

    return asyncio.run(ask())


@pytest.mark.parametrize("who", OTHERS)
def test_other_machines_reach_the_way_for_nodes_alone(who, app):
    for path in ("/v1/control/list-nodes", "/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/x", "/"):
        answer = asked(app, who, path)
        assert (answer.status_code, answer.text) == (403, "allowed only from the server's own machine")
    for path in ("/v1/fleet/activate-node", "/v1/fleet/pull-messages"):
        assert asked(app, who, path).status_code not in (403, 404)
    for path in ("/v1/fleet/../control/list-nodes", "/v1/fleet//v1/control/list-nodes", "/V1/fleet/x", "/v1/fleet"):
        assert asked(app, who, path).status_code in (403, 404)


@pytest.mark.parametrize("who", [*HERE, "192.0.2.1"])  # the last: with the address that it asks
def test_the_servers_own_machine_reaches_all(who, app):
    assert asked(app, who, "/v1/control/list-nodes").status_code not in (403, 404)


@pytest.mark.parametrize("client", [None, ("192.0.2.7", 1)])
def test_what_is_no_request_is_refused_too(client):
    sent = []

    async def send(event):
        sent.append(event["type"])

    asyncio.run(GatekeeperApp(None)({"type": "websocket", "path": "/v1/control/x", "client": client}, None, send))
    assert sent == ["websocket.close"]


def test_nobody_but_this_machine_says_where_a_request_came_from(tmp_path, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert environment(tmp_path)["FORWARDED_ALLOW_IPS"] == "127.0.0.1,::1"


def test_a_superlink_without_a_gate_is_not_left_running(tmp_path, monkeypatch):
    """As with a Flower that serves in another way than the one that we know."""
    monkeypatch.setattr(superlink, "wait_until_reachable", lambda *_: None)
    children = []

    def child(command, log, env):
        children.append(Child(["sleep", "60"], log, env))
        return children[0]

    monkeypatch.setattr(superlink, "Child", child)
    with pytest.raises(
        FleetError,
        match=r"this version of Flower is not supported; install a supported one with: pip install",
    ):
        start_superlink(Home(tmp_path), "127.0.0.1", free_port(), secure=False)
    assert children[0].ended


@pytest.mark.parametrize(("source", "answered", "taken"), [(7, "abc", True), (8, "abc", False), (7, "", False)])
def test_a_node_answers_in_its_own_name_and_what_it_was_asked(source, answered, taken, monkeypatch):
    """Flower itself takes a message with any sender from any node, also one that answers nothing."""
    pushed = []
    monkeypatch.setattr(fleet_handlers, "push_messages", own_answers(lambda request, state: pushed.append(request)))
    about = SimpleNamespace(src_node_id=source, reply_to_message_id=answered)
    request = SimpleNamespace(node=SimpleNamespace(node_id=7), messages_list=[SimpleNamespace(metadata=about)])
    if taken:
        fleet_push_messages(request, None)
        assert pushed == [request]
    else:
        with pytest.raises(HTTPException, match="403: a node may only answer its own messages"):
            fleet_push_messages(request, None)
        assert pushed == []
