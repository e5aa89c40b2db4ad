// SPDX-License-Identifier: Apache-2.0
// The chat page. Text of the model and of tools goes into textContent only, never into HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const history = [];  // messages as the API takes them
let running = null;  // AbortController of the answer under way

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function headers() {
  const made = { "Content-Type": "application/json" };
  if ($("key").value) made.Authorization = "Bearer " + $("key").value;
  return made;
}

function follow() {
  const main = document.querySelector("main");
  if (main.scrollHeight - main.scrollTop - main.clientHeight < 160) main.scrollTop = main.scrollHeight;
}

// One answer on the page while it comes.
class Answer {
  constructor() {
    this.item = element("li", "assistant");
    this.text = element("div", "text");
    this.item.append(this.text);
    $("messages").append(this.item);
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.begin = performance.now();
  }
  fold(className, title) {
    const details = element("details", className);
    const summary = element("summary", "", title);
    const text = element("div", "text");
    details.append(summary, text);
    this.item.insertBefore(details, className === "call" ? null : this.text);
    return { summary, text };
  }
  add(delta) {
    if (delta.reasoning_content) {
      if (!this.thought) this.thought = this.fold("thinking", "Thinking …");
      this.reasoning += delta.reasoning_content;
      this.thought.text.textContent = this.reasoning;
    }
    if (delta.content) {
      this.content += delta.content;
      this.text.textContent = this.content;
    }
    for (const part of delta.tool_calls || []) {
      let call = this.calls[part.index];
      if (!call) {
        call = this.calls[part.index] = { id: part.id, name: part.function.name, arguments: "" };
        call.view = this.fold("call", "Calls " + call.name);
      }
      call.arguments += part.function.arguments || "";
      call.view.text.textContent = call.arguments;
    }
    follow();
  }
  end(reason, usage) {
    this.item.classList.add("done");
    if (this.thought) this.thought.summary.textContent = "Thinking";
    const seconds = (performance.now() - this.begin) / 1000;
    const parts = [];
    if (usage) {
      parts.push(`${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`);
      if (usage.prompt_cache_hit_tokens) parts.push(`${usage.prompt_cache_hit_tokens} of ${usage.prompt_tokens} prompt tokens cached`);
    }
    if (reason && reason !== "stop") parts.push(reason === "length" ? "cut off at the token limit" : reason);
    if (parts.length) this.item.append(element("p", "note", parts.join(" · ")));
  }
  fail(message) {
    this.item.classList.add("done");
    this.item.append(element("p", "error", message));
  }
  message() {
    const made = { role: "assistant", content: this.content };
    if (this.reasoning) made.reasoning_content = this.reasoning;
    if (this.calls.length) {
      made.tool_calls = this.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    return made;
  }
}

function request() {
  const body = { model: $("model").value, messages: history.slice(), stream: true, thinking: { type: $("thinking").checked ? "enabled" : "disabled" } };
  if ($("system").value) body.messages.unshift({ role: "system", content: $("system").value });
  if ($("thinking").checked) body.reasoning_effort = $("effort").value;
  for (const [id, name] of [["max-tokens", "max_tokens"], ["temperature", "temperature"], ["top-p", "top_p"], ["seed", "seed"]]) {
    if ($(id).value !== "") body[name] = Number($(id).value);
  }
  if ($("tools").value.trim()) body.tools = JSON.parse($("tools").value);
  return body;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const line = rest.slice(0, end);
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("again").disabled = Boolean(running) || history.length === 0;
  $("clear").disabled = Boolean(running) || history.length === 0;
  $("empty").hidden = history.length > 0;
}

async function answer() {
  setRunning(new AbortController());
  const shown = new Answer();
  follow();
  let reason = null, usage = null;
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(request()), signal: running.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      if (choice) {
        shown.add(choice.delta);
        reason = choice.finish_reason || reason;
      }
      usage = chunk.usage || usage;
    }
    shown.end(reason, usage);
  } catch (error) {
    if (error.name === "AbortError") shown.end("stopped", null);
    else shown.fail(error.message);
  }
  if (shown.content || shown.calls.length) history.push(shown.message());
  setRunning(null);
  for (const call of shown.calls) askForResult(call);
  $("input").focus();
}

// A call waits for a result that the user types.
function askForResult(call) {
  const item = element("li", "user");
  const label = element("label", "", `Result of ${call.name} `);
  const input = element("input");
  label.append(input);
  item.append(label);
  $("messages").append(item);
  input.focus();
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || input.disabled || running) return;
    event.preventDefault();
    input.disabled = true;
    history.push({ role: "tool", tool_call_id: call.id, content: input.value });
    call.has_result = true;
    const last = history.findLast((message) => message.tool_calls);
    const waiting = last.tool_calls.some((one) => !history.some((message) => message.tool_call_id === one.id));
    if (!waiting) answer();
  });
}

function send() {
  const text = $("input").value;
  if (!text.trim() || running) return;
  $("input").value = "";
  history.push({ role: "user", content: text });
  const item = element("li", "user");
  item.append(element("div", "text", text));
  $("messages").append(item);
  answer();
}

function regenerate() {
  if (running || history.length === 0) return;
  while (history.length && history[history.length - 1].role !== "user") history.pop();
  const items = [...$("messages").children];
  while (items.length && !(items[items.length - 1].classList.contains("user") && items[items.length - 1].querySelector(".text"))) items.pop().remove();
  if (history.length) answer();
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
  if (event.key.toLowerCase() === "r" && event.altKey) { event.preventDefault(); regenerate(); }
});
$("stop").addEventListener("click", () => running && running.abort());
$("again").addEventListener("click", regenerate);
$("clear").addEventListener("click", () => { history.length = 0; $("messages").replaceChildren(); setRunning(null); $("input").focus(); });
$("settings-toggle").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("settings-toggle").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); loadModels(); });

async function loadModels() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    const names = response.ok ? (await response.json()).data.map((model) => model.id) : [];
    $("model").replaceChildren(...names.map((name) => element("option", "", name)));
  } catch { /* the gauges show that the server is away */ }
}

// ---- gauges ----

let before = null;

function sum(text, name) {
  let total = 0, found = false;
  for (const match of text.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, "gm"))) { total += Number(match[1]); found = true; }
  return found ? total : null;
}

async function updateGauges() {
  if (document.hidden) return;
  try {
    const text = await (await fetch("/metrics", { headers: headers() })).text();
    const now = { time: performance.now(), tokens: sum(text, "deepinfer_output_tokens_total") };
    if (before && now.time > before.time) $("g-rate").textContent = Math.round((now.tokens - before.tokens) / (now.time - before.time) * 1000);
    before = now;
    $("g-running").textContent = sum(text, "deepinfer_requests_running") ?? "–";
    const hits = sum(text, 'deepinfer_prompt_tokens_total\\{kind="hit"\\}'), misses = sum(text, 'deepinfer_prompt_tokens_total\\{kind="miss"\\}');
    $("g-hits").textContent = hits + misses > 0 ? Math.round(100 * hits / (hits + misses)) + " %" : "–";
    const drafts = sum(text, "deepinfer_spec_draft_tokens_total"), accepted = sum(text, "deepinfer_spec_accepted_tokens_total");
    $("g-accepted").textContent = drafts > 0 ? Math.round(100 * accepted / drafts) + " %" : "–";
  } catch {
    for (const id of ["g-rate", "g-running", "g-hits", "g-accepted"]) $(id).textContent = "–";
    before = null;
  }
}

loadModels();
updateGauges();
setInterval(updateGauges, 2000);
