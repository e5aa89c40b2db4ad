# SPDX-License-Identifier: Apache-2.0
"""`deepinfer download` against a hub that breaks connections, lies about sizes and damages bytes."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import signal
import ssl
import subprocess
import threading

import pytest
from conftest import PROGRAM, ROOT
from hub import COMMIT, ID, Hub

PART = 32 << 20
CONFIG = b'{"model_type": "deepseek_v41"}'


def some_bytes(size, seed=1):
    block = random.Random(seed).randbytes(1 << 20)
    # Every block is another one, so that ranges in wrong places are noticed.
    return b"".join(i.to_bytes(8, "little") + block[8:] for i in range(size // len(block) + 1))[:size]


def small_files():
    return {"config.json": CONFIG, "model.safetensors": some_bytes(300_000), "nested/deep/notes.txt": b"text", "empty.txt": b""}


@contextlib.contextmanager
def running(files, **options):
    hub = Hub(files, **{"small": ("config.json", "nested/deep/notes.txt", "empty.txt"), **options})
    try:
        yield hub
    finally:
        hub.close()


def environment(hub, home, **extra):
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **extra}


def download(hub, home, *arguments, model=ID, **extra):
    return subprocess.run([PROGRAM, "download", model, "--quiet", *map(str, arguments)], env=environment(hub, home, **extra), capture_output=True,
                          text=True, timeout=40)


def error_line(done):
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def check_snapshot(home, files):
    repository = pathlib.Path(home) / "hub" / "models--acme--tiny"
    snapshot = repository / "snapshots" / COMMIT
    for path, data in files.items():
        assert (snapshot / path).is_symlink() and (snapshot / path).read_bytes() == data
    assert (repository / "refs" / "main").read_text() == COMMIT
    leftovers = [path for path in (repository / "blobs").iterdir() if "incomplete" in path.name]
    assert not leftovers
    manifest = json.loads((snapshot / "deepinfer-manifest.json").read_text())
    assert {file["path"]: file["sha256"] for file in manifest["files"]} == {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    return snapshot


def test_into_the_cache(tmp_path):
    files = small_files()
    with running(files) as hub:
        done = download(hub, tmp_path, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        snapshot = check_snapshot(tmp_path, files)
        assert report["dir"] == str(snapshot) and report["commit"] == COMMIT
        assert report["files"] == 4 and report["fetched_bytes"] == report["bytes"] == sum(map(len, files.values()))
        # Everything is there: only the list is asked for.
        hub.log.clear()
        again = json.loads(download(hub, tmp_path, "--json").stdout)
        assert again["fetched_bytes"] == 0 and len(hub.log) == 1
        offline = download(hub, tmp_path, HF_HUB_OFFLINE="1")
        assert offline.returncode == 0 and offline.stdout.strip() == str(snapshot)
        assert len(hub.log) == 1
        # A damaged blob is found when asked for.
        blob = snapshot / "model.safetensors"
        path = blob.resolve()
        path.write_bytes(b"x" + files["model.safetensors"][1:])
        assert download(hub, tmp_path, "--verify").returncode == 0
        check_snapshot(tmp_path, files)


def test_into_a_folder_with_patterns(tmp_path):
    files = small_files()
    with running(files) as hub:
        target = tmp_path / "model"
        done = download(hub, tmp_path, "--dir", target, "--include", "*.json", "--include", "nested/*")
        assert done.returncode == 0 and done.stdout.strip() == str(target)
        assert (target / "config.json").read_bytes() == CONFIG and (target / "nested/deep/notes.txt").read_bytes() == b"text"
        assert not (target / "model.safetensors").exists()
        assert download(hub, tmp_path, "--dir", target, "--exclude", "*.txt").returncode == 0
        assert (target / "model.safetensors").read_bytes() == files["model.safetensors"]
        assert not (target / "empty.txt").exists()
        nothing = download(hub, tmp_path, "--include", "*.gguf")
        assert nothing.returncode == 2 and "--include" in error_line(nothing)


def test_the_model_is_found_by_its_id(tmp_path):
    demo = {path.name: path.read_bytes() for path in (ROOT / "models" / "demo").iterdir() if path.is_file()}
    with running(demo, small=("config.json",)) as hub:
        assert download(hub, tmp_path).returncode == 0
        done = subprocess.run([PROGRAM, "generate", "--model", ID, "--chat", "What is the capital of France?", "--no-think", "--temperature", "0", "--quiet"],
                              env=environment(hub, tmp_path), capture_output=True, text=True, timeout=40)
        assert done.stdout.strip() == "The capital of France is Paris.", done.stderr


def test_parallel_ranges_and_dropped_connections(tmp_path):
    files = {"config.json": CONFIG, "big.bin": some_bytes(3 * PART + 12345)}
    rng = random.Random(3)
    with running(files) as hub:
        hub.faults = lambda kind, path, begin, end: f"drop:{rng.randrange(1, end - begin)}" if kind == "file" and path == "big.bin" and rng.random() < 0.6 else None
        done = download(hub, tmp_path, "--connections", "4")
        assert done.returncode == 0, done.stderr
        check_snapshot(tmp_path, files)
        ranges = {headers.get("Range") for kind, path, headers in hub.log if kind == "store"}
        assert f"bytes={PART}-{2 * PART - 1}" in ranges
        assert hub.served_bytes <= sum(map(len, files.values())) + 4 * PART  # what came before a break is kept


def test_a_hub_without_ranges(tmp_path):
    files = {"config.json": CONFIG, "big.bin": some_bytes(2 * PART + 77)}
    with running(files) as hub:
        hub.faults = lambda kind, path, begin, end: "no_range" if kind == "file" else None
        done = download(hub, tmp_path, "--connections", "3")
        assert done.returncode == 0, done.stderr
        check_snapshot(tmp_path, files)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_resumed(tmp_path, how):
    files = {"config.json": CONFIG, "big.bin": some_bytes(4 * PART)}
    with running(files) as hub:
        reached, gate = threading.Event(), threading.Event()
        count = iter(range(100))

        def hold(kind, path):
            if kind == "store" and next(count) == 2:
                reached.set()
                gate.wait(60)

        hub.on_request = hold
        process = subprocess.Popen([PROGRAM, "download", ID, "--quiet", "--connections", "1"], env=environment(hub, tmp_path))
        assert reached.wait(60)
        process.send_signal(how)
        code = process.wait(60)
        gate.set()
        assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
        hub.on_request = lambda kind, path: None
        report = json.loads(download(hub, tmp_path, "--json").stdout)
        assert report["fetched_bytes"] == 2 * PART + len(CONFIG)
        check_snapshot(tmp_path, files)


def test_damaged_bytes(tmp_path):
    files = small_files()
    with running(files) as hub:
        faults = iter(["corrupt"])
        hub.faults = lambda kind, path, begin, end: next(faults, None) if (kind, path) == ("file", "model.safetensors") else None
        assert download(hub, tmp_path).returncode == 0
        check_snapshot(tmp_path, files)
    with running(files) as hub:
        hub.faults = lambda kind, path, begin, end: "corrupt" if (kind, path) == ("file", "model.safetensors") else None
        done = download(hub, tmp_path / "other")
        assert done.returncode == 3 and "model.safetensors does not have the hash" in error_line(done)
        assert not list((tmp_path / "other").rglob("snapshots"))


@pytest.mark.parametrize("fault, words", [("wrong_range", "instead of"), ("short", "gave up"), ("long", "more bytes"), ("hash", "another model.safetensors")])
def test_a_hub_that_lies(tmp_path, fault, words):
    with running(small_files()) as hub:
        hub.faults = lambda kind, path, begin, end: fault if path == "model.safetensors" and kind in ("file", "redirect") else None
        done = download(hub, tmp_path, "--max-retries", "1")
        assert done.returncode in (1, 3)
        assert words in error_line(done) and "model.safetensors" in error_line(done)


@pytest.mark.parametrize("size", [299_999, 300_001])
def test_sizes_that_are_wrong_in_the_list(tmp_path, size):
    with running(small_files()) as hub:
        hub.sizes["model.safetensors"] = size
        done = download(hub, tmp_path, "--max-retries", "1")
        assert done.returncode in (1, 3) and "model.safetensors" in error_line(done)


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "a//b", "a\\b", "a/", ".", "x\n"])
def test_names_that_lead_out(tmp_path, path):
    with running(small_files()) as hub:
        hub.listed = {"sha": COMMIT, "siblings": [hub.entry("config.json"), {**hub.entry("model.safetensors"), "rfilename": path}]}
        done = download(hub, tmp_path)
        assert done.returncode == 3 and "no safe relative path" in error_line(done)
        assert len(hub.log) == 1


@pytest.mark.parametrize("listed", [[], {}, {"sha": "main", "siblings": []}, {"sha": COMMIT, "siblings": {}}, {"sha": COMMIT, "siblings": [7]},
                                    {"sha": COMMIT, "siblings": [{"rfilename": "a", "size": -1, "blobId": "0" * 40}]},
                                    {"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "blobId": "x"}]},
                                    {"sha": COMMIT, "siblings": 2 * [{"rfilename": "a", "size": 1, "blobId": "0" * 40}]}])
def test_lists_that_make_no_sense(tmp_path, listed):
    with running(small_files()) as hub:
        hub.list = lambda: listed
        done = download(hub, tmp_path)
        assert done.returncode == 3 and ID in error_line(done)


@pytest.mark.parametrize("status, words", [(401, "HF_TOKEN"), (403, "accept its terms"), (404, "does not exist")])
def test_refusals(tmp_path, status, words):
    with running(small_files()) as hub:
        hub.faults = lambda kind, path, begin, end: status if kind == "list" else None
        done = download(hub, tmp_path)
        assert done.returncode == 3 and words in error_line(done)
        hub.faults = lambda kind, path, begin, end: status if kind == "file" else None
        done = download(hub, tmp_path)
        assert done.returncode == 3 and words in error_line(done)
    unknown = None
    with running(small_files()) as hub:
        unknown = download(hub, tmp_path, model="acme/other")
    assert unknown.returncode == 3 and "acme/other" in error_line(unknown)


def test_busy_hub(tmp_path):
    files = small_files()
    with running(files) as hub:
        answers = {"list": iter([503, 429]), "file": iter([500, 429, 408])}
        hub.retry_after = "0"
        hub.faults = lambda kind, path, begin, end: next(answers[kind], None) if kind in answers else None
        assert download(hub, tmp_path).returncode == 0
        check_snapshot(tmp_path, files)


def test_the_token_stays_with_the_hub(tmp_path):
    with running(small_files()) as hub:
        done = download(hub, tmp_path, HF_TOKEN="hf_secret")
        assert done.returncode == 0
        assert all(headers.get("Authorization") == "Bearer hf_secret" for kind, _, headers in hub.log if kind == "hub")
        assert any(kind == "store" for kind, _, _ in hub.log)
        assert not any("Authorization" in headers for kind, _, headers in hub.log if kind == "store")
        hub.faults = lambda kind, path, begin, end: 403 if kind == "list" else None
        assert "hf_secret" not in download(hub, tmp_path, HF_TOKEN="hf_secret").stderr
        (tmp_path / "token").write_text("hf_of_file\n")
        hub.faults = lambda kind, path, begin, end: None
        hub.log.clear()
        assert download(hub, tmp_path).returncode == 0
        assert hub.log[0][2]["Authorization"] == "Bearer hf_of_file"


def test_two_at_once(tmp_path):
    with running(small_files()) as hub:
        reached, gate = threading.Event(), threading.Event()

        def hold(kind, path):
            if kind == "store":
                reached.set()
                gate.wait(60)

        hub.on_request = hold
        process = subprocess.Popen([PROGRAM, "download", ID, "--quiet"], env=environment(hub, tmp_path))
        assert reached.wait(60)
        second = download(hub, tmp_path)
        gate.set()
        assert second.returncode == 1 and "another download" in error_line(second)
        assert process.wait(60) == 0


def test_wrong_usage(tmp_path):
    with running(small_files()) as hub:
        for model in ("tiny", "a/b/c", "../x", "acme/"):
            assert download(hub, tmp_path, model=model).returncode == 2
        assert "HF_ENDPOINT" in error_line(download(hub, tmp_path, HF_ENDPOINT="ftp://x"))
        gone = hub.url
    lost = subprocess.run([PROGRAM, "download", ID, "--quiet", "--max-retries", "0"],
                          env={"HF_ENDPOINT": gone, "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert lost.returncode == 1 and "cannot connect to 127.0.0.1" in error_line(lost)
    offline = subprocess.run([PROGRAM, "download", ID, "--quiet"], env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HOME": str(tmp_path)},
                             capture_output=True, text=True, timeout=60)
    assert offline.returncode == 3 and "HF_HUB_OFFLINE" in error_line(offline)


def test_tls(tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem", "-days", "2",
                    "-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    files = small_files()
    with running(files, context=context) as hub:
        assert download(hub, tmp_path / "home", SSL_CERT_FILE=str(tmp_path / "cert.pem")).returncode == 0
        check_snapshot(tmp_path / "home", files)
        done = download(hub, tmp_path / "other")
        assert done.returncode == 1 and "certificate" in error_line(done)


def test_proxy(tmp_path):
    """An http proxy gets whole addresses; no_proxy goes around it."""
    files = small_files()
    with running(files) as hub, running({}) as proxy:
        done = download(hub, tmp_path, "--max-retries", "0", http_proxy=proxy.url)
        assert done.returncode == 3
        assert proxy.log[0][1].startswith(hub.url)
        assert not hub.log
        assert download(hub, tmp_path, http_proxy=proxy.url, no_proxy="127.0.0.1").returncode == 0
        check_snapshot(tmp_path, files)
