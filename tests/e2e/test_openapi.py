# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document against the server: routes, golden requests and answers, generated requests."""

import json
import os
import re
import subprocess
import sys

import jsonschema
import pytest
from conftest import ROOT, run_program
from test_http import wait_until

DOCUMENT = json.loads((ROOT / "src" / "server" / "openapi.json").read_text(encoding="utf-8"))
REQUESTS = {"chat": "ChatRequest", "responses": "ResponsesRequest", "messages": "MessagesRequest"}
ANSWERS = {"chat": "ChatCompletion", "responses": "Response", "messages": "Message"}
EVENTS = {"chat": "ChatChunk", "responses": "ResponsesEvent", "messages": "MessagesEvent"}
# Requests that are answered although the document says what is good style, and answers of the reference that differ on purpose.
LOOSE = {"responses/stream-tool-badjson"}


def closed(node):
    """The same schema, but fields that it does not name are wrong."""
    if isinstance(node, list):
        return [closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    out = {key: closed(value) for key, value in node.items()}
    return {**out, "additionalProperties": False} if isinstance(out.get("properties"), dict) and "type" in out else out


def validator(name, is_closed=False):
    components = {"schemas": DOCUMENT["components"]["schemas"]}
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": closed(components) if is_closed else components})


def golden(api, kind):
    with open(ROOT / "tests" / "golden" / "protocols" / f"{api}_{kind}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def resolved(item):
    while "$ref" in item:
        node = DOCUMENT
        for key in item["$ref"].removeprefix("#/").split("/"):
            node = node[key.replace("%7B", "{").replace("%7D", "}").replace("~1", "/").replace("~0", "~")]
        item = node
    return item


def test_document():
    assert DOCUMENT["openapi"] == "3.1.0"
    text = json.dumps(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        jsonschema.Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"][name])
        assert text.count(f'"#/components/schemas/{name}"') >= 1 or name in EVENTS.values(), f"{name} is not used"
    for ref in set(re.findall(r'"\$ref": "(#[^"]*)"', text)):
        assert resolved({"$ref": ref})
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values() if isinstance(operation, dict)]
    assert len(ids) == len(set(ids))


def test_routes():
    source = (ROOT / "src" / "server" / "routes.cc").read_text(encoding="utf-8")
    routes = set(re.findall(r'Row\{"([^"]+)", Endpoint::\w+, "\w+", "(\w+)"', source))
    prefixes = re.search(r"for \(const std::string_view prefix : \{([^}]*)\}", source)[1]
    routes |= {(prefix + "{id}", "GET") for prefix in re.findall(r'"([^"]+)"', prefixes)}
    documented = {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in resolved(item)}
    assert routes == documented


def test_served(scripted):
    status, headers, body = scripted.request("GET", "/openapi.json")
    assert (status, headers["content-type"], body) == (200, "application/json", DOCUMENT)


@pytest.mark.parametrize("api", REQUESTS)
def test_golden_requests(api):
    """The document must not be narrower than the server."""
    check = validator(REQUESTS[api])
    for case in golden(api, "convert") + golden(api, "stream"):
        if "request" not in case or "error" in case["expect"] or case["id"] in LOOSE:
            continue
        assert not [error.message for error in check.iter_errors(case["request"])], case["id"]


@pytest.mark.parametrize("api", ANSWERS)
def test_golden_answers(api):
    """Every field of an answer is in the document."""
    answer, event = validator(ANSWERS[api], True), validator(EVENTS[api], True)
    num_checked = 0
    for case in golden(api, "stream"):
        pairs = [(answer, case["expect"]["response"])] if case["expect"].get("response") else []
        pairs += [(event, one["data"]) for one in case["expect"].get("events", []) if isinstance(one["data"], dict)]
        for check, value in pairs:
            num_checked += 1
            assert not [error.message for error in check.iter_errors(value)], (case["id"], value)
    assert num_checked > 100


def fuzzing_document():
    """The document with a model name that exists, so that requests get past it."""
    document = json.loads(json.dumps(DOCUMENT))
    for schema in document["components"]["schemas"].values():
        if "examples" in schema.get("properties", {}).get("model", {}):
            schema["properties"]["model"] = {"const": "deepseek-flash"}
    return document


def run_schemathesis(server, file, paths, *arguments):
    file.write_text(json.dumps(fuzzing_document()))
    include = [word for path in paths for word in ("--include-path", path)]
    command = [sys.executable, "-m", "schemathesis.cli", "run", file, "--url", server.url, "--generation-deterministic", "--workers", "1",
               "--request-timeout", "60", "--no-color", "--checks",
               "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance",
               *include, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=file.parent, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]


def test_generated_requests(tmp_path):
    """Aliases are the same operations; the page is not an API. More by hand: docs/internals/operating.md."""
    operations = [path for path, item in DOCUMENT["paths"].items() if "post" in item]
    # Small answers, so that many requests fit.
    with run_program("--max-output-tokens", 4, "--max-model-len", 2048, "--access-log", "off") as server:
        run_schemathesis(server, tmp_path / "a.json", operations, "--phases", "examples,fuzzing", "--max-examples", 8)
        # Each limit of each field, and other methods.
        small = ["/tokenize", "/detokenize", "/v1/completions", "/v1/models", "/v1/models/{id}", "/healthz", "/readyz", "/version", "/metrics"]
        run_schemathesis(server, tmp_path / "b.json", small, "--phases", "coverage")
        assert server.request("GET", "/readyz")[0] == 200
        wait_until(lambda: server.metric("deepinfer_requests_running") == 0)
