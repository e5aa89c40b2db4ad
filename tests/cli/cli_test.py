#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of the built program: cli_test.py PROGRAM [unittest arguments].

Standard library only. Everything runs on the demo model."""

import errno
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

# A background job of a shell starts with these ignored, and the program then keeps them so; the tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/deepinfer"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GREEDY = ["--temperature", "0"]
QUESTION = "What is the capital of France?"


def environment(**changes):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DEEPINFER_", "HF_"))}
    env.update(changes)
    return env


def need_grammars():
    """Skips a test in a build without the grammar library."""
    probe = run("generate", "x", "--grammar-regex", os.devnull, "--max-tokens", "1")
    if b"not in this build" in probe.stderr:
        raise unittest.SkipTest("this build has no grammar library")


def run(*args, stdin=b"", env=None, **kwargs):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, env=env or environment(), timeout=120, **kwargs)


class CliTest(unittest.TestCase):
    def refused(self, result, code, *texts):
        """One error line on stderr, nothing on stdout."""
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.decode().splitlines()
        self.assertTrue(lines, "no error line")
        self.assertTrue(lines[-1].startswith("error: "), lines)
        self.assertEqual(sum(line.startswith("error: ") for line in lines), 1, lines)
        self.assertIsNone(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", result.stderr.decode()), lines)
        for text in texts:
            self.assertIn(text, lines[-1])
        self.assertEqual(result.stdout, b"")


class Basics(CliTest):
    def test_version(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout.decode(), r"^deepinfer \d+\.\d+\.\d+ \(commit ")
        document = json.loads(run("--version", "--json").stdout)
        self.assertLessEqual({"version", "commit", "compiler", "backends", "cpu_path"}, document.keys())
        self.assertIn("cpu", document["backends"])

    def test_help_of_everything(self):
        top = run("--help")
        self.assertEqual((top.returncode, top.stderr), (0, b""))
        commands = re.findall(r"^  ([a-z][a-z-]*(?: [a-z-]+)?)(?= {2,}|$| [\[A-Z<|]| bash)", top.stdout.decode(), re.M)
        self.assertIn("generate", commands)
        self.assertIn("debug tokenize", commands)
        for command in commands:
            result = run(*command.split(), "--help")
            self.assertEqual((result.returncode, result.stderr), (0, b""), command)
            self.assertTrue(result.stdout.decode().startswith("Usage: deepinfer " + command), command)

    def test_no_command(self):
        result = run()
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, b"")
        self.assertTrue(result.stderr.decode().splitlines()[-1].startswith("error: "))

    def test_wrong_usage(self):
        for args, text in [
            (["generat"], "did you mean generate?"),
            (["debug", "tokenise"], "did you mean debug tokenize?"),
            (["generate", "--max-token", "1", "x"], "did you mean --max-tokens?"),
            (["generate", "x", "--max-tokens", "0"], "--max-tokens is 0"),
            (["generate", "x", "--max-tokens", "1e9"], "whole number"),
            (["generate", "x", "--temperature", "nan"], "--temperature"),
            (["generate", "x", "--top-p", "1.5"], "--top-p"),
            (["generate", "x", "--threads", "-1"], "--threads"),
            (["generate", "x", "--threads", "99999999"], "--threads"),
            (["generate", "x", "--numerics", "fp8"], "release, fp32, plain"),
            (["generate", "x", "--device", "toaster"], "--device"),
            (["generate", "x", "--seed"], "--seed needs a value"),
            (["generate", "x", "y"], "at most 1 argument"),
            (["generate", ""], "prompt is empty"),
            (["generate", "x", "--model", "a\x1b[31mb", "--max-tokens", "0"], "--max-tokens"),
            (["completion", "tcsh"], "bash, zsh, fish"),
        ]:
            with self.subTest(args=args):
                self.refused(run(*args), 2, text)

    def test_context_beyond_the_checkpoint(self):
        self.refused(run("generate", "x", "--max-model-len", "999999"), 2, "max_model_len is 999999", "lower it")

    def test_empty_prompt_on_stdin(self):
        self.refused(run("generate"), 2, "prompt is empty")

    def test_device_that_is_not_built_in(self):
        result = run("generate", "x", "--device", "ascend:3")
        self.assertIn(result.returncode, (1, 2), result.stderr)
        self.assertTrue(result.stderr.decode().startswith("error: "))

    def test_missing_model(self):
        with tempfile.TemporaryDirectory() as home:
            env = environment(HF_HOME=home)
            self.refused(run("generate", "x", "--model", "/no/such/model", env=env), 3, "/no/such/model", "hub id")
            self.refused(run("generate", "x", "--model", "owner/name", env=env), 3, "deepinfer download owner/name")
            self.refused(run("generate", "x", "--model", PROGRAM, env=env), 3, "is a file")
            self.refused(run("generate", "x", "--model", "a\x1b[31m\nb", env=env), 3, "\\x1b[31m\\nb")
            self.refused(run("debug", "tokenize", "--model", home, env=env), 3, "tokenizer.json")

    def test_environment_names(self):
        env = environment(DEEPINFER_HF_MODEL_DIR="/no/such/model")
        self.refused(run("generate", "x", env=env), 3, "/no/such/model")
        env = environment(DEEPINFER_MAX_TOKENS="none")
        self.refused(run("generate", "x", env=env), 2, "DEEPINFER_MAX_TOKENS")
        result = run("generate", "x", "--max-tokens", "1", env=environment(DEEPINFER_MAX_TOKNES="3"))
        self.assertEqual(result.returncode, 0)
        self.assertIn("did you mean DEEPINFER_MAX_TOKENS?", result.stderr.decode())

    def test_config_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "settings.toml")

            def write(text):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)

            write("max_tokens = 3\ntemperature = 0\njson = true\n")
            result = run("generate", "The", "--config", path)
            self.assertEqual(json.loads(result.stdout)["usage"]["completion_tokens"], 3, result.stderr)
            # flag > environment > file
            env = environment(DEEPINFER_CONFIG=path, DEEPINFER_MAX_TOKENS="4")
            self.assertEqual(json.loads(run("generate", "The", env=env).stdout)["usage"]["completion_tokens"], 4)
            result = run("generate", "The", "--max-tokens", "5", env=env)
            self.assertEqual(json.loads(result.stdout)["usage"]["completion_tokens"], 5)
            write("max_tokenz = 3\n")
            self.refused(run("generate", "The", "--config", path), 2, path + ":1", "did you mean max_tokens?")
            write("max_tokens = = 3\n")
            self.refused(run("generate", "The", "--config", path), 2, path + ":1")
            self.refused(run("generate", "The", "--config", path + ".gone"), 3, path + ".gone")


class Generate(CliTest):
    def test_text_and_json_agree(self):
        text = run("generate", "The capital of", *GREEDY, "--max-tokens", "8")
        self.assertEqual((text.returncode, text.stderr), (0, b""))
        result = run("generate", "The capital of", *GREEDY, "--max-tokens", "8", "--json")
        lines = result.stdout.decode().splitlines()
        self.assertEqual(len(lines), 1)
        document = json.loads(lines[0])
        self.assertEqual(set(document), {"text", "ids", "finish_reason", "usage", "timing", "speculation"})
        self.assertEqual(set(document["usage"]), {"prompt_tokens", "cached_tokens", "completion_tokens"})
        self.assertEqual(set(document["timing"]), {"load_s", "ttft_s", "tokens_per_s"})
        self.assertEqual(set(document["speculation"]), {"steps", "emitted_per_step"})
        self.assertEqual(text.stdout.decode().rstrip("\n"), document["text"].rstrip("\n"))
        self.assertEqual(len(document["ids"]), document["usage"]["completion_tokens"])

    def test_answer(self):
        result = run("generate", "--chat", QUESTION, *GREEDY)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Paris", result.stdout.decode())
        self.assertNotIn("\x1b", result.stdout.decode())
        document = json.loads(run("generate", "--chat", QUESTION, *GREEDY, "--json").stdout)
        self.assertIn("Paris", document["text"])
        self.assertEqual(document["finish_reason"], "stop")
        self.assertTrue(document["reasoning"])
        document = json.loads(run("generate", "--chat", QUESTION, *GREEDY, "--json", "--no-think").stdout)
        self.assertFalse(document["reasoning"])

    def test_seed_repeats(self):
        outputs = {run("generate", "The", "--seed", "7", "--max-tokens", "12").stdout for _ in range(2)}
        self.assertEqual(len(outputs), 1)

    def test_stdin_and_invalid_utf8(self):
        result = run("generate", *GREEDY, "--max-tokens", "2", stdin=b"The \xff")
        self.assertEqual(result.returncode, 0)
        self.assertIn("not valid UTF-8", result.stderr.decode())
        self.assertEqual(run("generate", *GREEDY, "--max-tokens", "2", "--quiet", stdin=b"The \xff").stderr, b"")

    def test_stats_go_to_stderr(self):
        result = run("generate", "The", *GREEDY, "--max-tokens", "2", "--json", "--stats")
        json.loads(result.stdout)
        self.assertIn("output tokens", result.stderr.decode())

    def test_prompt_longer_than_the_context(self):
        self.refused(run("generate", "--max-model-len", "16", stdin="word " * 100), 1, "16")

    def test_grammars(self):
        need_grammars()
        with tempfile.TemporaryDirectory() as folder:
            def path(text):
                with open(os.path.join(folder, "grammar"), "w", encoding="utf-8") as file:
                    file.write(text)
                return file.name

            result = run("generate", "The date is ", "--grammar-regex", path("[0-9]{4}-[0-9]{2}\n"), "--json", "--seed", "1")
            answer = json.loads(result.stdout)
            self.assertRegex(answer["text"].replace("<｜end▁of▁sentence｜>", ""), r"^[0-9]{4}-[0-9]{2}$")
            self.assertEqual(answer["finish_reason"], "stop")
            result = run("generate", "x", "--grammar-json-schema", path('{"enum":["red","green"]}'), "--json", "--seed", "1")
            self.assertIn(json.loads(json.loads(result.stdout)["text"].replace("<｜end▁of▁sentence｜>", "")), ["red", "green"])
            result = run("generate", "x", "--grammar-ebnf", path('root ::= "a" | "bc"'), "--json", "--chat", "--seed", "1")
            self.assertIn(json.loads(result.stdout)["text"], ["a", "bc"])
            self.refused(run("generate", "x", "--grammar-regex", path("(a")), 2, "position")
            self.refused(run("generate", "x", "--grammar-regex", path("a"), "--grammar-ebnf", path("a")), 2, "exclude each other")
            self.refused(run("generate", "x", "--grammar-regex", os.path.join(folder, "absent")), 3, "--grammar-regex", "absent")

    def test_interrupt(self):
        process = subprocess.Popen([PROGRAM, "generate", "The", "--ignore-eos", "--max-tokens", "100000"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment())
        self.addCleanup(process.kill)
        process.stdout.read(1)  # it is generating
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(stderr, b"")

    def test_interrupt_while_waiting_for_input(self):
        process = subprocess.Popen([PROGRAM, "debug", "tokenize"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment())
        self.addCleanup(process.kill)
        while f"{process.pid} (deepinfer) S" not in open(f"/proc/{process.pid}/stat", encoding="utf-8").read():
            time.sleep(0.01)  # until it waits for its input
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual((process.returncode, stderr), (130, b""))


class Pipes(CliTest):
    def test_reader_that_leaves(self):
        for command in ("generate x --ignore-eos --max-tokens 100000", "--help", "completion bash", "completion reference"):
            script = f"set -o pipefail; {PROGRAM} {command} | head -c 1"
            result = subprocess.run(["bash", "-c", script], capture_output=True, env=environment(), timeout=60, stdin=subprocess.DEVNULL)
            self.assertEqual((result.returncode, result.stderr), (0, b""), command)

    def test_reader_of_many_lines(self):
        script = f"set -o pipefail; yes '{{\"text\": \"hello\"}}' | head -20000 | {PROGRAM} debug tokenize --jsonl | head -1"
        result = subprocess.run(["bash", "-c", script], capture_output=True, env=environment(), timeout=60)
        self.assertEqual(result.stderr, b"")
        json.loads(result.stdout)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_full_disk(self):
        for args in (["--version"], ["generate", "x", "--max-tokens", "2"], ["generate", "x", "--max-tokens", "2", "--json"],
                     ["doctor", "--json"], ["completion", "zsh"], ["chat"], ["debug", "tokenize"]):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                result = subprocess.run([PROGRAM, *args], input=b"Hello", stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60)
                lines = result.stderr.decode().splitlines()
                self.assertEqual(result.returncode, 1, lines)
                self.assertEqual(len(lines), 1, lines)
                self.assertIn("No space left on device", lines[0])
                self.assertTrue(lines[0].startswith("error: "))


class Completion(CliTest):
    def test_scripts_parse(self):
        for shell in ("bash", "zsh", "fish"):
            result = run("completion", shell)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            with tempfile.NamedTemporaryFile(suffix="." + shell) as file:
                file.write(result.stdout)
                file.flush()
                check = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}[shell]
                try:
                    self.assertEqual(subprocess.run([*check, file.name], capture_output=True).returncode, 0, shell)
                except FileNotFoundError:
                    pass  # that shell is not installed here

    def complete(self, *words):
        script = run("completion", "bash").stdout.decode()
        quoted = " ".join(f"'{word}'" for word in words)
        script += f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _deepinfer; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        return subprocess.run(["bash", "-c", script], capture_output=True, timeout=60).stdout.decode().split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("deepinfer", "gen"), ["generate"])
        self.assertIn("tokenize", self.complete("deepinfer", "debug", ""))
        self.assertEqual(self.complete("deepinfer", "generate", "--numerics", "f"), ["fp32"])
        self.assertEqual(self.complete("deepinfer", "generate", "--max-t"), ["--max-tokens"])
        self.assertIn("--special", self.complete("deepinfer", "debug", "tokenize", "--s"))
        self.assertIn("zsh", self.complete("deepinfer", "completion", ""))


class Debug(CliTest):
    def test_tokenize_round_trip(self):
        text = "Hello, Welt! \u4f60\u597d \U0001f600\n"
        ids = json.loads(run("debug", "tokenize", stdin=text).stdout)["ids"]
        self.assertEqual(json.loads(run("debug", "detokenize", stdin=json.dumps(ids)).stdout), {"text": text})

    def test_special_tokens(self):
        text = "<\uff5cUser\uff5c>"
        self.assertEqual(len(json.loads(run("debug", "tokenize", stdin=text).stdout)["ids"]), 1)
        self.assertGreater(len(json.loads(run("debug", "tokenize", "--special", "none", stdin=text).stdout)["ids"]), 1)

    def test_jsonl(self):
        lines = '{"text": "a"}\n\n{"bytes_base64": "YQ=="}\r\n{"text": ""}'
        result = run("debug", "tokenize", "--jsonl", stdin=lines)
        documents = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(len(documents), 3)
        self.assertEqual(documents[0], documents[1])
        self.assertEqual(documents[2], {"ids": []})
        result = run("debug", "detokenize", "--jsonl", stdin="[1]\n[]\n")
        self.assertEqual(json.loads(result.stdout.splitlines()[1]), {"text": ""})

    def test_grammar(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "grammar")

            def check(kind, grammar, text):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(grammar)
                return run("debug", "grammar", "--kind", kind, "--schema", path, stdin=text)

            result = check("regex", "[a-z]+\n", "abc")
            if result.returncode and b"DEEPINFER_XGRAMMAR" in result.stderr:
                self.skipTest("built without structured outputs")
            self.assertEqual(json.loads(result.stdout), {"accepts": True, "position": 3})
            self.assertEqual(json.loads(check("regex", "[a-z]+", "ab1").stdout), {"accepts": False, "position": 2})
            self.assertEqual(json.loads(check("ebnf", 'root ::= "a" "b"', "a").stdout), {"accepts": False, "position": 1})
            self.assertEqual(json.loads(check("json_schema", '{"type": "integer"}', "12").stdout), {"accepts": True, "position": 2})
            self.refused(check("regex", "(a", "a"), 3, "position 3")
        self.refused(run("debug", "grammar", "--kind", "regex", stdin="a"), 2, "--schema")
        self.refused(run("debug", "grammar", "--schema", "/nowhere", stdin="a"), 3, "/nowhere")

    def test_bad_input(self):
        for args, stdin in ((["tokenize", "--jsonl"], "{"), (["tokenize", "--jsonl"], '{"text": 1}'),
                            (["tokenize", "--jsonl"], '{"bytes_base64": "!"}'), (["detokenize"], "[1,"), (["detokenize"], '["a"]'),
                            (["detokenize"], "7"), (["detokenize"], "[" * 100000)):
            with self.subTest(args=args, stdin=stdin[:20]):
                self.refused(run("debug", *args, stdin=stdin), 3, "stdin")
        self.assertEqual(json.loads(run("debug", "detokenize", stdin="[-1, 99999999999, 18446744073709551615]").stdout), {"text": ""})

    def test_unknown_ids_are_named_on_stderr(self):
        result = run("debug", "detokenize", "--jsonl", stdin="[1, 99999999]\n[-1]\n")
        self.assertEqual(result.returncode, 0)
        self.assertIn("2 ids are outside the vocabulary", result.stderr.decode())
        self.assertEqual(run("debug", "detokenize", "--quiet", stdin="[-1]").stderr, b"")

    def test_protocol_options(self):
        request = json.dumps({"model": "deepseek-flash", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.25, "top_p": 0.5})
        official = json.loads(run("debug", "render", stdin=request).stdout)["inference"]
        client = json.loads(run("debug", "render", "--sampling-policy", "client", stdin=request).stdout)["inference"]
        self.assertEqual((client["temperature"], client["top_p"]), (0.25, 0.5))
        self.assertNotEqual((official["temperature"], official["top_p"]), (0.25, 0.5))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        forced = json.dumps({"model": "deepseek-flash", "messages": [{"role": "user", "content": "Hi"}], "tools": tools,
                             "tool_choice": "required"})
        self.assertEqual(run("debug", "render", stdin=forced).returncode, 1)
        self.assertEqual(run("debug", "render", "--tool-choice-thinking", "grammar", stdin=forced).returncode, 0)
        history = json.dumps({"model": "deepseek-flash", "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"}], "tools": tools})
        self.assertEqual(run("debug", "render", stdin=history).returncode, 0)
        refused = run("debug", "render", "--missing-reasoning", "reject", stdin=history)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("must be passed back to the API", refused.stdout.decode())

    def test_protocols(self):
        """debug render and debug parse-stream of the other protocols."""
        prefill = json.dumps({"model": "claude-x", "thinking": {"type": "disabled"},
                              "messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]})
        prompt = json.loads(run("debug", "render", "--api", "messages", stdin=prefill).stdout)["prompt"]
        self.assertTrue(prompt.endswith("<｜Assistant｜></think>"), prompt)
        prompt = json.loads(run("debug", "render", "--api", "messages", "--messages-prefill", stdin=prefill).stdout)["prompt"]
        self.assertTrue(prompt.endswith("</think>A"), prompt)
        stored = json.dumps({"model": "deepseek-flash", "input": "Hi", "previous_response_id": "resp_1"})
        refused = run("debug", "render", "--api", "responses", stdin=stored)
        self.assertEqual(refused.returncode, 1)
        self.assertEqual(json.loads(refused.stdout)["error"]["body"]["error"]["message"], "previous_response_id is not supported")
        self.assertEqual(run("debug", "render", "--api", "responses", "--previous-response-id", "ignore", stdin=stored).returncode, 0)

        pieces = '"Let me see.</think>Pa"\n{"text": "ris", "tokens": 2}\n'
        events = run("debug", "parse-stream", "--api", "messages", "--normalize", stdin=pieces).stdout.decode().splitlines()
        names = [json.loads(event)["event"] for event in events]
        self.assertEqual((names[0], names[-1], "ping" in names), ("message_start", "message_stop", True))
        message = json.loads(run("debug", "parse-stream", "--api", "messages", "--normalize", "--accumulate", stdin=pieces).stdout)
        self.assertEqual([block.get("thinking", block.get("text")) for block in message["content"]], ["Let me see.", "Paris"])
        self.assertEqual(message["usage"]["output_tokens"], 3)
        events = run("debug", "parse-stream", "--api", "responses", "--finish", "length", stdin=pieces).stdout.decode().splitlines()
        last = json.loads(events[-1])
        self.assertEqual(last["event"], "response.incomplete")
        self.assertEqual([item["type"] for item in last["data"]["response"]["output"]], ["reasoning", "message"])
        self.assertEqual(last["data"]["sequence_number"], len(events) - 1)


class DamagedWeights(CliTest):
    def model_with(self, name, value):
        """A copy of the demo model whose tensor `name` starts with `value` (F32, BF16) or consists of it (bytes)."""
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        model = os.path.join(directory, "model")
        shutil.copytree(os.path.join(SOURCE, "models", "demo"), model)
        for shard in glob.glob(os.path.join(model, "*.safetensors")):
            with open(shard, "r+b") as file:
                size = struct.unpack("<Q", file.read(8))[0]
                tensor = json.loads(file.read(size)).get(name)
                if tensor is None:
                    continue
                file.seek(8 + size + tensor["data_offsets"][0])
                if isinstance(value, bytes):
                    begin, end = tensor["data_offsets"]
                    file.write(value * (end - begin))
                else:
                    data = struct.pack("<f", value)
                    file.write(data if tensor["dtype"] == "F32" else data[2:])
                return model
        self.fail("no tensor " + name)

    def test_weights_that_are_not_finite_are_refused(self):
        for name in ("layers.1.ffn.gate.bias", "layers.1.ffn.gate.weight", "norm.weight", "head.weight", "embed.weight",
                     "layers.2.attn.compressor.wkv.weight"):
            with self.subTest(name=name):
                model = self.model_with(name, float("nan"))
                self.refused(run("generate", "--model", model, "x"), 3, name)
                self.refused(run("inspect", "--verify", "--model", model), 3, name)

    def test_logits_that_are_not_finite_end_the_work(self):
        golden = os.path.join(SOURCE, "tests", "golden", "tiny", "nll.json")
        # 2^127: finite, but not what comes out
        model = self.model_with("layers.0.attn.wq_a.scale", b"\xfe")
        for args in (["generate", "--chat", "x"], ["debug", "logits", "--ids", "0"], ["eval", "nll", golden]):
            with self.subTest(args=args):
                self.refused(run(args[0], *args[1:], "--model", model), 1, "inspect --verify")
        model = self.model_with("mtp.2.attn.wo_b.scale", b"\xfe")
        self.refused(run("debug", "draft", "--ids", "0", "--next", "8", "--model", model), 1, "inspect --verify")


class Batch(CliTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, *lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def completion(self, custom_id, **body):
        body = {"model": "demo", "prompt": "The capital of", "max_tokens": 4, "temperature": 0, **body}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}

    def chat(self, custom_id, text=QUESTION, **body):
        body = {"model": "deepseek-flash", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"},
                "seed": 1, "max_tokens": 40, **body}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}

    def long_input(self, count):
        """Some greedy, some with a seed; enough work to be interrupted."""
        return self.write("in", *(self.completion(f"r{i}", max_tokens=60 + i % 7, ignore_eos=True, temperature=i % 2, seed=i)
                                  for i in range(count)))

    def start_and_wait_for_lines(self, count, *args):
        process = subprocess.Popen([PROGRAM, "batch", *args], stderr=subprocess.PIPE, env=environment())
        self.addCleanup(process.stderr.close)
        deadline = time.monotonic() + 60
        while not os.path.exists(args[1]) or self.read(os.path.basename(args[1])).count(b"\n") < count:
            self.assertIsNone(process.poll(), "ended before it was interrupted")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        return process

    def test_answers_in_order(self):
        answers = [self.chat("a"), self.completion("b", logprobs=2), self.chat("c", "What is the opposite of hot?", logprobs=True),
                   self.completion("d", prompt=[440, 327, 312, 1722, 300], n=2, temperature=1, seed=3)]
        result = run("batch", self.write("in", *answers), self.path("out"), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual((report["requests"], report["done"], report["failed"]), (4, 4, 0))
        lines = [json.loads(line) for line in self.read("out").splitlines()]
        self.assertEqual([line["custom_id"] for line in lines], ["a", "b", "c", "d"])
        for line in lines:
            self.assertEqual(set(line), {"id", "custom_id", "response", "error"})
            self.assertEqual((line["response"]["status_code"], line["error"]), (200, None))
            self.assertEqual(set(line["response"]), {"status_code", "request_id", "body"})
        bodies = [line["response"]["body"] for line in lines]
        self.assertEqual(bodies[0]["choices"][0]["message"]["content"], "The capital of France is Paris.")
        self.assertEqual(bodies[0]["choices"][0]["finish_reason"], "stop")
        self.assertEqual(bodies[1]["object"], "text_completion")
        logprobs = bodies[1]["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), bodies[1]["choices"][0]["text"])
        self.assertEqual([len(top) for top in logprobs["top_logprobs"]], [2] * 4)
        self.assertEqual(len(bodies[2]["choices"][0]["logprobs"]["content"]), bodies[2]["usage"]["completion_tokens"] - 1)
        self.assertEqual([choice["index"] for choice in bodies[3]["choices"]], [0, 1])
        # BOS comes in front of a text, never of ids.
        self.assertEqual((bodies[1]["usage"]["prompt_tokens"], bodies[3]["usage"]["prompt_tokens"]), (4, 5))

    def test_bad_lines_fail_alone(self):
        lines = [self.chat("a"), "no json", {"custom_id": "b"}, self.completion("c", temperature=-1), self.completion("d", prompt=""),
                 {**self.chat("e"), "url": "/v1/embeddings"}, {**self.chat("f"), "method": "GET"}, self.chat("g", n=2),
                 self.completion("h", echo=True), self.completion("i", prompt=[1] * 20000),
                 self.completion("j", prompt=[99999]), self.chat("k", model="other"), "", "[1]", self.completion("l", prompt=7),
                 self.completion("m")]
        result = run("batch", self.write("in", *lines), self.path("out"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("12 failed", result.stderr.decode())
        answers = [json.loads(line) for line in self.read("out").splitlines()]
        self.assertEqual([answer["custom_id"] for answer in answers],
                         ["a", None, "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", None, "l", "m"])
        status = [answer["response"] and answer["response"]["status_code"] for answer in answers]
        self.assertEqual(status, [200, None, None, 400, 400, 404, None, 400, 200, 400, 400, 400, None, 400, 200])
        for answer in answers:
            if answer["response"] is None:
                self.assertEqual(answer["error"]["code"], "invalid_request")
            elif answer["response"]["status_code"] != 200:
                self.assertTrue(answer["response"]["body"]["error"]["message"])

    def test_structured_outputs(self):
        need_grammars()
        schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Berne"]}, "big": {"type": "boolean"}}}
        tools = [{"type": "function", "function": {"name": name, "parameters": schema, "strict": True}} for name in ("look", "write")]
        named = {"type": "function", "function": {"name": "write"}}
        response_format = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
        lines = [self.chat("a", response_format=response_format), self.chat("b", response_format={"type": "regex", "regex": "[a-c]{4}"}),
                 self.chat("c", tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200),
                 self.chat("d", tools=tools, tool_choice=named, parallel_tool_calls=False, max_tokens=200),
                 self.completion("e", so_args={"schema_type": "choice", "schema": ["yes", "no"]}),
                 self.chat("f", response_format={"type": "regex", "regex": "(a"}),
                 self.completion("g", so_args={"schema_type": "ebnf", "schema": "root ::= nothing"}),
                 self.completion("h", so_args={"schema_type": "regex"}), self.completion("i", so_args={"schema_type": "poem", "schema": ""}),
                 self.chat("j", tools=tools, tool_choice="required", thinking={"type": "enabled"}), self.chat("k")]
        result = run("batch", self.write("in", *lines), self.path("out"))
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = [json.loads(line)["response"] for line in self.read("out").splitlines()]
        self.assertEqual([answer["status_code"] for answer in answers], [200] * 5 + [400] * 5 + [200])
        choices = [answer["body"]["choices"][0] for answer in answers[:5]]
        parsed = json.loads(choices[0]["message"]["content"])
        self.assertEqual((set(parsed), parsed["city"] in ("Rome", "Berne"), type(parsed["big"])), ({"city", "big"}, True, bool))
        self.assertRegex(choices[1]["message"]["content"], "^[a-c]{4}$")
        for choice in choices[2:4]:
            self.assertEqual(choice["finish_reason"], "tool_calls")
            self.assertEqual(len(choice["message"]["tool_calls"]), 1)
            arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            # In any order; a name may come twice in another's place.
            self.assertLessEqual(set(arguments), {"city", "big"})
            self.assertTrue(arguments)
        self.assertEqual(choices[3]["message"]["tool_calls"][0]["function"]["name"], "write")
        self.assertIn(choices[4]["text"], ["yes", "no"])
        self.assertEqual(answers[10]["body"]["choices"][0]["message"]["content"], "The capital of France is Paris.")

    def test_killed_run_goes_on(self):
        source = self.long_input(24)
        self.assertEqual(run("batch", source, self.path("whole")).returncode, 0)
        process = self.start_and_wait_for_lines(3, source, self.path("out"), "--concurrency", "2")
        process.kill()
        process.wait()
        self.assertLess(self.read("out").count(b"\n"), 24)
        with open(self.path("out"), "ab") as file:
            file.write(self.read("whole").splitlines()[self.read("out").count(b"\n")][:70])  # a torn line
        result = run("batch", source, self.path("out"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("going on after them", result.stderr.decode())
        self.assertEqual(self.read("out"), self.read("whole"))
        self.assertIn("already", run("batch", source, self.path("out")).stderr.decode())
        self.assertEqual(self.read("out"), self.read("whole"))

    def test_interrupt_says_how_to_go_on(self):
        source = self.long_input(24)
        process = self.start_and_wait_for_lines(2, source, self.path("out"), "--concurrency", "2")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.assertIn(b"run the same command again to go on", process.stderr.read())
        for line in self.read("out").splitlines():
            self.assertEqual(json.loads(line)["response"]["status_code"], 200)
        self.assertEqual(run("batch", source, self.path("out"), "--quiet").stderr, b"")
        self.assertEqual(self.read("out").count(b"\n"), 24)

    def test_foreign_output_is_never_touched(self):
        source = self.write("in", self.completion("a"), self.completion("b"))
        self.assertEqual(run("batch", source, self.path("good")).returncode, 0)
        good = self.read("good").decode().splitlines()
        for content, text in [("hello", "line 1 is no result"), ("hello\n", "line 1 is no result"), ("{}\n", "line 1 is no result"),
                              (good[1] + "\n", "custom_id"), (good[0] + "\n" + good[1] + "\n" + good[1] + "\n", "more lines"),
                              (good[0] + "\n" + good[1] + "\nx", "behind the last result"),
                              (good[0].replace("batch_req_", "batch_req_0") + "\n", "has changed since"), (good[0] + "\nfoo", "line 2")]:
            with self.subTest(content=content[:40]):
                with open(self.path("out"), "w", encoding="utf-8") as file:
                    file.write(content)
                self.refused(run("batch", source, self.path("out")), 2, text)
                self.assertEqual(self.read("out").decode(), content)
        before = self.read("in")
        self.refused(run("batch", source, source), 2, "both input and output")
        self.assertEqual(self.read("in"), before)

    def test_refused_inputs(self):
        self.refused(run("batch", self.path("none"), self.path("out")), 3, "none")
        self.refused(run("batch", self.write("empty"), self.path("out")), 3, "no requests")
        twice = self.write("twice", self.completion("a"), self.completion("b"), self.completion("a"))
        self.refused(run("batch", twice, self.path("out")), 3, "line 3", "that of line 1")
        self.refused(run("batch", self.write("in", self.completion("a")), self.folder), 1, "directory")
        self.refused(run("batch", self.path("in"), self.path("no/dir")), 1, "create its folder")
        self.refused(run("batch", self.path("in"), "-", "--json"), 2, "--json")
        self.assertFalse(os.path.exists(self.path("out")))

    def test_pipes_and_defaults_of_requests(self):
        requests = "\n".join(json.dumps(self.completion(name, temperature=1, max_tokens=None)) for name in "abc")
        first = run("batch", "-", "-", "--seed", "5", "--max-tokens", "3", stdin=requests)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual([json.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in first.stdout.splitlines()], [3] * 3)
        again = run("batch", "-", "-", "--seed", "5", "--max-tokens", "3", "--concurrency", "1", stdin=requests)
        self.assertEqual(again.stdout, first.stdout)
        self.assertNotEqual(run("batch", "-", "-", "--seed", "6", "--max-tokens", "3", stdin=requests).stdout, first.stdout)


class Bench(CliTest):
    SMALL = ["--input-tokens", "40", "--output-tokens", "4", "--repeats", "1"]

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def record(self, *args):
        result = run("bench", *args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1)
        return json.loads(result.stdout)

    def is_picture(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return text.startswith("<svg ") and text.endswith("</svg>\n")

    def test_throughput(self):
        plot, out = os.path.join(self.folder, "t.svg"), os.path.join(self.folder, "t.json")
        record = self.record("throughput", *self.SMALL, "--batch", "2", "--requests", "5", "--async", "both", "--plot", plot, "--out", out)
        self.assertLessEqual({"bench", "commit", "dirty", "date_utc", "host", "device", "backend", "dtype", "shape", "threads", "batch", "context",
                              "reps", "median", "p10", "p90", "unit", "paired_ref", "counters", "valid", "ttft_ms", "tpot_ms", "out_tok_s",
                              "in_tok_s", "al", "cache_hit", "peak_rss", "host_us_per_sequence_step", "exposed_host_share"}, record.keys())
        self.assertEqual((record["bench"], record["batch"], record["shape"]["requests"]), ("throughput", 2, 5))
        self.assertGreater(record["out_tok_s"], 0)
        self.assertGreater(record["paired_ref"]["ratio_median"], 0)
        # 5 prompts of 40 tokens and 3 more steps each, at most two in a step
        self.assertGreaterEqual(record["decode_steps"], 8)
        self.assertTrue(self.is_picture(plot))
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file), record)
        preset = self.record("throughput", "--workload", "W1", "--max-model-len", "48", "--batch", "1", "--requests", "1", "--repeats", "1")
        self.assertEqual((preset["shape"]["input_tokens"], preset["shape"]["output_tokens"]), (32, 16))

    def test_latency_with_a_known_prefix(self):
        record = self.record("latency", "--input-tokens", "640", "--output-tokens", "3", "--repeats", "1", "--prefix-hit", "80")
        self.assertEqual((record["shared_tokens"], record["cached_tokens"]), (512, 512))
        self.assertGreater(record["ttft_hit_ratio"]["median"], 0)
        self.assertNotIn("ttft_hit_ms", self.record("latency", *self.SMALL))

    def test_sweep_goes_on(self):
        out = os.path.join(self.folder, "points")
        args = ["bench", "sweep", "--batches", "1,2", "--inputs", "8", "--outputs", "2,3", "--repeats", "1", "--out", out, "--json"]
        first = run(*args)
        self.assertEqual(first.returncode, 0, first.stderr)
        lines = first.stdout.splitlines(keepends=True)
        self.assertEqual([(r["batch"], r["shape"]["output_tokens"]) for r in map(json.loads, lines)], [(1, 2), (2, 2), (1, 3), (2, 3)])
        with open(out, "wb") as file:
            file.write(lines[0] + lines[1] + lines[2][:30])  # cut off
        second = run(*args)
        self.assertEqual(second.returncode, 0, second.stderr)
        again = second.stdout.splitlines(keepends=True)
        self.assertEqual(again[:2], lines[:2])
        with open(out, "rb") as file:
            self.assertEqual(file.read(), second.stdout)
        with open(out, "w", encoding="utf-8") as file:
            file.write("{}\n")
        self.refused(run(*args), 2, "no record of a sweep")

    def test_structured(self):
        need_grammars()
        plot = os.path.join(self.folder, "s.svg")
        record = self.record("structured", *self.SMALL, "--batch", "2", "--plot", plot)
        self.assertEqual((record["bench"], record["batch"], record["shape"]["requests"]), ("structured", 2, 2))
        self.assertGreater(record["paired_ref"]["ratio_median"], 0)
        self.assertGreater(record["decode_step_ms"]["median"], 0)
        self.assertTrue(self.is_picture(plot))

    def test_timeline(self):
        plot, trace = os.path.join(self.folder, "t.svg"), os.path.join(self.folder, "t.json")
        record = self.record("timeline", "--input-tokens", "40", "--output-tokens", "10", "--steps", "6", "--plot", plot, "--chrome-trace", trace)
        self.assertEqual(len(record["steps"]), 6)
        self.assertLessEqual({step["kind"] for step in record["steps"]}, {"prefill", "decode"})
        self.assertTrue(0 <= record["hidden_share"] <= 1 and 0 < record["device_share"] <= 1)
        self.assertTrue(self.is_picture(plot))
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertEqual(sum(event["name"].startswith("run ") for event in events), 6)

    def test_replay_quality(self):
        golden = os.path.join(SOURCE, "tests", "golden", "tiny", "nll.json")
        args = ["eval", "replay", golden, "--lengths", "512", "--hits", "50,90", "--texts", "1", "--max-tokens", "4"]
        result = run(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([row["hit_tokens"] for row in rows], [256, 384])
        for row in rows:
            self.assertEqual(row["cached_tokens"]["replay"], row["hit_tokens"])
            # The latest state that leaves the kept 140 tokens of the prompt to compute.
            self.assertEqual(row["cached_tokens"]["exact"], row["hit_tokens"] - 256)
            # The demo model's loss on these is 0.42; replay may not be far from exact.
            self.assertLess(row["nll"]["exact"], 1.5)
            self.assertLess(abs(row["nll"]["difference"]), 0.3)
        self.refused(run(*args, env=environment(DEEPINFER_DECODER_REPLAY="off")), 2, "decoder replay")
        self.refused(run("eval", "replay", os.path.join(self.folder, "none")), 3, "none")

    def test_refused(self):
        for args, text in [(["throughput", "--plot", "x.png"], ".svg"), (["timeline", "--plot", "x.png"], ".svg"),
                           (["throughput", "--input-tokens", "999999"], "the context holds"),
                           (["throughput", "--workload", "W1", "--input-tokens", "3"], "leave --input-tokens"),
                           (["throughput", "--workload", "W9"], "W1"), (["latency", "--batch", "2"], "one sequence"),
                           (["latency", "--async", "both"], "bench throughput"), (["latency", "--prefix-hit", "101"], "--prefix-hit"),
                           (["sweep", "--batches", "0"], "--batches"), (["sweep", "--inputs", "99999"], "the context holds"),
                           (["throughput", "--batch", "60000"], "--max-num-seqs")]:
            with self.subTest(args=args):
                self.refused(run("bench", *args), 2, text)


class KvStore(CliTest):
    def test_commands_on_an_empty_store(self):
        with tempfile.TemporaryDirectory() as path:
            self.refused(run("kv-store", "stats", path), 3, "no block store")
            with open(os.path.join(path, "FORMAT"), "w") as file:
                file.write("DIKV 1\n" + "0123456789abcdef" * 2 + "\n")
            stats = run("kv-store", "stats", path, "--json")
            if b"built without RocksDB" in stats.stderr:
                raise unittest.SkipTest("this build has no RocksDB")
            self.assertEqual(stats.returncode, 0, stats.stderr)
            self.assertEqual(json.loads(stats.stdout)["blocks"], 0)
            self.assertEqual(json.loads(run("kv-store", "scrub", path, "--json").stdout)["problems"], [])
            self.assertEqual(json.loads(run("kv-store", "gc", path, "--json").stdout)["blocks"], 0)
            self.assertEqual(json.loads(run("kv-store", "purge", path, "class", "chat", "--json").stdout)["purged_blocks"], 0)
            self.refused(run("kv-store", "purge", path, "color", "red"), 2, "cannot be purged")
            with open(os.path.join(path, "FORMAT"), "w") as file:
                file.write("DIKV 2\n")
            self.refused(run("kv-store", "stats", path), 3, "FORMAT says version")


class Logs(CliTest):
    def test_json_lines(self):
        result = run("generate", "--max-tokens", "1", "--log-format", "json", stdin=b"a\xff", env=environment(DEEPINFER_MAX_TOKENZ='"\n'))
        self.assertEqual(result.returncode, 0)
        lines = [json.loads(line) for line in result.stderr.splitlines()]
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertLessEqual({"time", "level", "component", "message"}, line.keys())
            self.assertEqual(line["level"], "warn")

    def test_level(self):
        self.assertEqual(run("generate", "--max-tokens", "1", "--log-level", "error", stdin=b"a\xff").stderr, b"")


class Doctor(CliTest):
    def test_reports(self):
        result = run("doctor", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1)
        document = json.loads(result.stdout)
        self.assertGreater(document["memory"]["total_bytes"], 0)
        self.assertGreater(document["cpu"]["available_cores"], 0)
        self.assertIn(document["cpu"]["path"], document["cpu"]["supported_paths"])
        self.assertTrue(document["demo_model"]["path"])
        self.assertGreater(document["cpu"]["arithmetic_gflop_per_s"], 0)
        self.assertTrue("error" in document["disk_rate"] or document["disk_rate"]["random_gb_per_s"] > 0)
        self.assertFalse(document["prediction"]["fits"] and document["prediction"]["needed_bytes"] > document["memory"]["total_bytes"])
        self.assertGreater(document["prediction"]["decode_all_in_memory"]["tokens_per_s"], 0)
        self.assertTrue(json.loads(run("doctor", "--json", "--model", "demo").stdout)["prediction"]["fits"])
        text = run("doctor").stdout.decode()
        self.assertIn("memory", text)
        # GPUs that the backend sees, or the reason why it sees none.
        self.assertRegex(text, r"(?m)^gpus  +(cuda:0 |none|NVIDIA: )")
        for gpu in document["gpus"]:
            self.assertEqual("capability" in gpu, gpu["vendor"] == "nvidia" and document["nvidia_problem"] is None)

    def test_doctor_says_why_there_is_no_gpu(self):
        result = run("doctor", "--cuda-plugin", "/nonexistent.so")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the NVIDIA backend cannot be loaded: /nonexistent.so", result.stdout.decode())

    def test_doctor_lists_gpus(self):
        plugin = os.environ.get("DEEPINFER_TEST_TWO_GPUS")
        if not plugin:
            self.skipTest("DEEPINFER_TEST_TWO_GPUS names no library")
        document = json.loads(run("doctor", "--json", "--cuda-plugin", plugin, "--model", "demo").stdout)
        first, second = document["gpus"]
        self.assertIsNone(document["nvidia_problem"])
        self.assertEqual((first["name"], first["capability"], first["memory_bytes"], first["has_code"]), ("Test GPU", "9.0", 80 << 30, True))
        self.assertTrue(first["fits"])
        self.assertEqual((second["capability"], second["has_code"], second["free_bytes"]), ("10.3", False, None))
        self.assertNotIn("fits", second)
        (missing,) = [one for one in document["missing"] if one["what"] == "GPU code"]
        self.assertIn("--device cpu", missing["fix"])  # no build has code for 10.3
        text = run("doctor", "--cuda-plugin", plugin).stdout.decode()
        self.assertRegex(text, r"gpus +cuda:0 Test GPU, 85\.9 GB, compute capability 9\.0.*: this build has code for it")
        self.assertRegex(text, r"the released model: needs .* there, 84\.8 GB free: does not fit")
        self.assertRegex(text, r"cuda:1 Other GPU, 309\.2 GB, compute capability 10\.3.*: this build has no code for it")


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, *args, env=None):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, *args], env or environment(TERM="xterm"))

    def send(self, text):
        os.write(self.fd, text.encode())

    def read(self, timeout):
        ready, _, _ = select.select([self.fd], [], [], timeout)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        self.output += data
        return bool(data)

    def expect(self, pattern, timeout=60):
        """Waits for the pattern in new output and returns what came up to its end."""
        deadline = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.output.decode(errors="replace"))
            if match:
                text = self.output.decode(errors="replace")
                self.output = text[match.end():].encode()
                return text[: match.end()]
            if time.monotonic() > deadline or not self.read(deadline - time.monotonic()):
                raise AssertionError(f"{pattern!r} not in {self.output!r}")

    def close(self):
        """A failed test must not wait for the program."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self):
        while self.read(60):
            pass
        ready, _, _ = select.select([self.fd], [], [], 0)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)  # it neither writes nor ends
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


PROMPT = r"\x1b\[1m>\x1b\[0m "


class Chat(CliTest):
    def terminal(self, *args):
        terminal = Terminal(*args)
        self.addCleanup(terminal.close)
        return terminal

    def test_piped(self):
        result = run("chat", *GREEDY, stdin=QUESTION + "\n\n" + QUESTION)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertEqual(result.stdout.decode().count("Paris"), 2)
        self.assertNotIn("\x1b", result.stdout.decode())

    def test_piped_json(self):
        result = run("chat", *GREEDY, "--json", stdin=QUESTION + "\n/quit\nnever\n")
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1)
        self.assertIn("Paris", json.loads(lines[0])["text"])

    def test_piped_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "talk.json")
            result = run("chat", *GREEDY, stdin=f"/system Be brief.\n{QUESTION}\n/save {path}\n/reset\n/effort 20\n/help\n/quit\n")
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path, encoding="utf-8") as file:
                roles = [message["role"] for message in json.load(file)["messages"]]
            self.assertEqual(roles, ["system", "user", "assistant"])
            for text in ("/reset", "saved 3 messages", "reasoning effort: 20"):
                self.assertIn(text, result.stderr.decode())
        self.refused(run("chat", stdin="/image cat.png\n"), 1, "images")
        self.refused(run("chat", stdin="/effort 200\n"), 2, "1 to 100")
        self.refused(run("chat", stdin="/rest\n"), 2, "did you mean /reset?")
        self.refused(run("chat", stdin="/save /no/such/dir/x\n"), 1, "/no/such/dir/x")

    def test_terminal(self):
        terminal = self.terminal("chat", *GREEDY)
        terminal.expect("/help lists the commands")
        terminal.expect(PROMPT)
        terminal.send(QUESTION + "\r")
        answer = terminal.expect(r"is Paris\.\r?\n(?s:.)*?" + PROMPT)
        self.assertIn("\x1b[2m", answer)  # thinking is dimmed
        # Arrow up brings the question back, Ctrl-U clears it; unknown commands name the nearest one.
        terminal.send("\x1b[A")
        terminal.expect("capital of France")
        terminal.send("\x15/hepl\r")
        terminal.expect("error: .*did you mean /help")
        terminal.expect(PROMPT)
        terminal.send("/effort 30\r")
        terminal.expect("reasoning effort: 30")
        terminal.send("/quit\r")
        self.assertEqual(terminal.wait(), 0)

    def test_interrupt_stops_the_answer_not_the_program(self):
        terminal = self.terminal("chat", *GREEDY, "--no-think")
        terminal.expect(PROMPT)
        terminal.send("\x03")
        terminal.expect("Ctrl-D or /quit leaves")
        terminal.send(QUESTION + "\r")
        terminal.expect(r"Paris")
        terminal.expect(PROMPT)
        terminal.send("\x04")
        self.assertEqual(terminal.wait(), 0)

    def test_what_is_typed_ahead_is_sent(self):
        terminal = self.terminal("chat", *GREEDY, "--no-think")
        terminal.send(QUESTION + "\r/effort 30\r")  # the model still loads
        terminal.expect(r"Paris(?s:.)*reasoning effort: 30")
        terminal.send(QUESTION + "\r/effort 31\r/quit\r")
        terminal.expect(r"Paris(?s:.)*reasoning effort: 31")
        self.assertEqual(terminal.wait(), 0)

    def test_history_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "history")
            for number in range(2):
                terminal = self.terminal("chat", "--history-file", path)
                terminal.expect(PROMPT)
                if number == 1:
                    terminal.send("\x1b[A\x1b[A")  # before the /quit
                    terminal.expect("/effort 41")
                    terminal.send("\x15")
                terminal.send("/effort 41\r")
                terminal.expect("reasoning effort: 41")
                terminal.send("/quit\r")
                self.assertEqual(terminal.wait(), 0)
            self.assertEqual(os.stat(path).st_mode & 0o077, 0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
