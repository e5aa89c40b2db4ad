# SPDX-License-Identifier: Apache-2.0
"""What operators rely on: /metrics keeps the rules of the format, the dashboard and the alerts name what is there, the admin port
writes an audit log, the service manager hears how the server is."""

import configparser
import json
import os
import re
import signal
import socket

import pytest
import yaml
from conftest import ROOT, Server, run_program
from test_auth import BODIES
from test_http import wait_until
from test_leaks import Canaries, requests

# operations.md 7, without what one host does not have (autoscaling), and those of other pages that exist today.
NAMES = {
    "deepinfer_requests_total": "counter", "deepinfer_requests_running": "gauge", "deepinfer_request_seconds": "histogram",
    "deepinfer_first_token_seconds": "histogram", "deepinfer_token_gap_seconds": "histogram", "deepinfer_prompt_tokens_total": "counter",
    "deepinfer_output_tokens_total": "counter", "deepinfer_spec_draft_tokens_total": "counter", "deepinfer_spec_accepted_tokens_total": "counter",
    "deepinfer_spec_accept_len": "histogram", "deepinfer_step_seconds": "histogram", "deepinfer_batch_tokens": "histogram",
    "deepinfer_kv_usage_ratio": "gauge", "deepinfer_finish_total": "counter", "deepinfer_errors_total": "counter", "deepinfer_build_info": "gauge",
    "deepinfer_kv_lookup_tokens_total": "counter", "deepinfer_kv_hit_ratio": "gauge", "deepinfer_kv_evicted_blocks_total": "counter",
    "deepinfer_router_queue_seconds": "histogram", "deepinfer_router_rejects_total": "counter",
    # Further ones of this program.
    "deepinfer_requests_waiting": "gauge", "deepinfer_http_generations": "gauge", "deepinfer_kv_blocks_used": "gauge",
}
PROCESS = {"process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_cpu_seconds_total"}
LABELS = {
    "deepinfer_requests_total": {"endpoint", "code", "class"}, "deepinfer_first_token_seconds": {"hit"}, "deepinfer_prompt_tokens_total": {"kind"},
    "deepinfer_step_seconds": {"role", "phase"}, "deepinfer_finish_total": {"reason"}, "deepinfer_errors_total": {"type"},
    "deepinfer_build_info": {"version", "git", "backend"}, "deepinfer_kv_lookup_tokens_total": {"result", "tier", "class"},
    "deepinfer_kv_hit_ratio": {"window", "class"}, "deepinfer_kv_evicted_blocks_total": {"reason"}, "deepinfer_router_queue_seconds": {"class"},
    "deepinfer_router_rejects_total": {"reason"},
}
SAMPLE = re.compile(r"([a-z_][a-z0-9_]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-z_][a-z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')


def parse_labels(text):
    labels, at = {}, 0
    while at < len(text or ""):
        match = LABEL.match(text, at)
        assert match, text
        assert match[1] not in labels, text
        labels[match[1]] = match[2]
        at = match.end()
    return labels


def lint(text):
    """{family: {"type", "samples": [(name, labels, value)]}}; asserts what promtool would complain about."""
    assert text.endswith("\n")
    families, current, seen = {}, None, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help_text = line[7:].partition(" ")
            assert name not in families, f"{name} comes twice"
            assert help_text, f"{name} has no help"
            current = families[name] = {"name": name, "samples": []}
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current["name"] and "type" not in current and not current["samples"]
            current["type"] = kind
        else:
            match = SAMPLE.match(line)
            assert match, line
            name, labels, value = match[1], parse_labels(match[2]), float(match[3])
            base = name if current["type"] != "histogram" else re.sub(r"_(bucket|sum|count)$", "", name)
            assert base == current["name"], f"{name} stands outside its family"
            key = (name, tuple(sorted(labels.items())))
            assert key not in seen, f"{key} comes twice"
            seen.add(key)
            current["samples"].append((name, labels, value))
    for name, family in families.items():
        kind = family["type"]
        assert (re.fullmatch(r"deepinfer_[a-z0-9_]+", name) or name in PROCESS) and "__" not in name, name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib|percent|bucket|sum|count|info)$", name) or name == "deepinfer_build_info", name
        label_sets = {tuple(sorted((k, v) for k, v in labels.items() if k != "le")) for _, labels, _ in family["samples"]}
        assert len(label_sets) <= 51, f"{name} has {len(label_sets)} label sets"
        if kind == "counter":
            assert all(value >= 0 for *_, value in family["samples"])
        if kind == "histogram":
            check_histogram(family)
        else:
            assert not any("le" in labels for _, labels, _ in family["samples"])
    return families


def check_histogram(family):
    series = {}
    for name, labels, value in family["samples"]:
        rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        one = series.setdefault(rest, {"buckets": []})
        if name.endswith("_bucket"):
            one["buckets"].append((float(labels["le"].replace("+Inf", "inf")), value))
        else:
            one[name.rsplit("_", 1)[1]] = value
    for rest, one in series.items():
        bounds, counts = zip(*one["buckets"])
        assert list(bounds) == sorted(set(bounds)) and bounds[-1] == float("inf"), (family["name"], rest)
        assert list(counts) == sorted(counts) and counts[-1] == one["count"], (family["name"], rest)
        assert one["sum"] >= 0


@pytest.fixture(scope="module")
def metrics():
    """After requests of every kind, and of a fresh server."""
    texts = []
    with run_program("--access-log", "off") as server:
        texts.append(server.request("GET", "/metrics")[2])
        for path, body in requests(Canaries()):
            server.request("POST", path, body)
            server.request("POST", path, {**body, "stream": True}, {"x-di-class": "batch"})
        for path in BODIES:
            server.request("POST", path, "{")
        server.request("GET", "/nothing")
        texts.append(server.request("GET", "/metrics")[2])
        content_type = server.request("GET", "/metrics")[1]["content-type"]
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return texts


def test_metrics_format(metrics):
    for text in metrics:
        families = lint(text)
        assert {name: families.get(name, {}).get("type") for name in NAMES} == NAMES
        assert set(families) == set(NAMES) | PROCESS, "a name that is in no list"
        for name, family in families.items():
            for _, labels, _ in family["samples"]:
                assert set(labels) - {"le"} == LABELS.get(name, set()), name


def test_metrics_count(metrics):
    before, after = ({(name, tuple(sorted(labels.items()))): value for family in lint(text).values() for name, labels, value in family["samples"]}
                     for text in metrics)

    def grown(name, **labels):
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name and set(labels.items()) <= set(key[1]))

    assert grown("deepinfer_requests_total", endpoint="chat_completions", code="200", **{"class": "agent"}) == 1
    assert grown("deepinfer_requests_total", endpoint="chat_completions", code="200", **{"class": "batch"}) == 1
    assert grown("deepinfer_requests_total", endpoint="none", code="404") == 1
    assert grown("deepinfer_errors_total", type="invalid_request_error") >= 5
    assert grown("deepinfer_router_queue_seconds_count", **{"class": "batch"}) == 4
    assert grown("deepinfer_first_token_seconds_count") >= 8
    # A counter never goes back.
    assert all(after[key] >= value for key, value in before.items() if key[0].endswith(("_total", "_count", "_bucket")))


def names_in(text):
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in NAMES else name for name in re.findall(r"deepinfer_[a-z0-9_]+", text)}


def test_dashboard():
    text = (ROOT / "deploy" / "grafana" / "deepinfer.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) >= 20
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    used = names_in(" ".join(targets))
    assert used <= set(NAMES)
    assert set(NAMES) - used == set(), "not on the dashboard"
    for expression in targets:
        check_expression(expression)


def check_expression(expression):
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}"), expression
    # Labels that are selected or grouped by belong to the metric.
    for name, selector in re.findall(r"(deepinfer_[a-z0-9_]+)\{([^}]*)\}", expression):
        base = name if name in NAMES else re.sub(r"_(bucket|sum|count)$", "", name)
        known = LABELS.get(base, set()) | {"instance", "le"}
        assert set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector)) <= known, expression
    if "_bucket" in expression:
        assert re.search(r"\ble\b", expression), expression


def test_alerts(metrics):
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 6
    guide = (ROOT / "docs" / "operations" / "monitoring.md").read_text(encoding="utf-8")
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"]
        assert names_in(rule["expr"]) <= set(NAMES)
        check_expression(rule["expr"])
        assert f"`{rule['alert']}`" in guide
    # Values of labels that rules select exist.
    families = lint(metrics[1])
    for name, selector in re.findall(r"(deepinfer_[a-z_]+)\{([^}]*)\}", " ".join(rule["expr"] for rule in rules)):
        base = name if name in families else re.sub(r"_(bucket|sum|count)$", "", name)
        for label, operator, pattern in re.findall(r'([a-z_]+)(=~|=)"([^"]*)"', selector):
            values = {labels.get(label) for _, labels, _ in families[base]["samples"]}
            for value in pattern.split("|") if operator == "=~" else [pattern]:
                assert value in values, (name, label, value)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_audit_log(tmp_path):
    audit, admin_port, profile_port = tmp_path / "audit.log", free_port(), free_port()
    orders = [("/admin/drain", {}, 200), ("/admin/undrain", {}, 200), ("/admin/log-level", {"level": "warn"}, 200), ("/admin/log-level", {"level": "loud"}, 400),
              ("/admin/log-level", "{", 400), ("/admin/scale", {"role": "decode", "n": 2}, 404)]
    with run_program("--admin-port", admin_port, "--audit-log", audit, "--profile-http-enable", "--profile-http-port-base", profile_port) as server:
        admin = Server(server.process, admin_port)
        for path, body, expected in orders:
            assert admin.request("POST", path, body)[0] == expected
        assert admin.request("POST", "/admin/profile", {"num_steps": 0})[0] == 400
        assert Server(server.process, profile_port).request("GET", "/profile?num_steps=51")[0] == 400
        # Reading changes nothing.
        assert admin.request("GET", "/server_info")[0] == 200
        assert admin.request("GET", "/admin/config")[0] == 200
        # A web page, or another host's name, gives no orders.
        assert admin.request("POST", "/admin/drain", {}, {"Origin": "http://localhost"})[0] == 403
        assert server.request("GET", "/readyz")[0] == 200
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["verb"], line["result"]) for line in lines] == [(path, status) for path, _, status in orders] + [("/admin/profile", 400), ("/profile", 400)]
    assert all(set(line) >= {"time", "subject", "verb", "args", "result"} and line["subject"] == "admin@127.0.0.1" for line in lines)
    assert lines[5]["args"] == {"role": "decode", "n": 2} and lines[7]["query"] == "num_steps=51"
    assert os.stat(audit).st_mode & 0o777 == 0o600


def test_server_info():
    port = free_port()
    with run_program("--admin-port", port, "--api-key", "a-secret-key-of-mine") as server:
        info = Server(server.process, port).request("GET", "/server_info")[2]
        assert info["version"] and info["git"] and (info["running"], info["waiting"]) == (0, 0) and info["connections"] >= 1
        assert info["options"]["api_key"] == "(set)" and "a-secret-key" not in json.dumps(info)
        assert server.request("GET", "/server_info")[0] == 404 and server.request("POST", "/admin/drain", {})[0] == 404


def test_service_manager(tmp_path, monkeypatch):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with run_program() as server:
            assert manager.recv(100) == b"READY=1"
            assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: manager.recv(100) == b"STOPPING=1")
            server.process.wait(60)


def test_unit_file():
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str
    unit.read(ROOT / "deploy" / "systemd" / "deepinfer@.service")
    service = unit["Service"]
    assert (service["Type"], service["Restart"], service["LimitMEMLOCK"], service["NoNewPrivileges"]) == ("notify", "on-failure", "infinity", "yes")
    assert service["ExecStart"].split()[1:] == ["serve", "--config", "/etc/deepinfer/%i.toml"]
    assert int(service["TimeoutStopSec"]) > 600  # the default of --drain-seconds
