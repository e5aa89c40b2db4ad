// SPDX-License-Identifier: Apache-2.0
// The chat page. Text of the model and of tools goes into textContent only, never into HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const history = [];  // {message, item}: messages as the API takes them, and what shows them
let running = null;  // AbortController of the answer under way

function headers() {
  const made = { "Content-Type": "application/json" };
  if ($("key").value) made.Authorization = "Bearer " + $("key").value;
  return made;
}

// ---- scrolling: follows the answer while the end is in sight ----

const scroller = document.querySelector("main");
let follows = true;
scroller.addEventListener("scroll", () => { follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80; });
function follow(always) {
  if (always || follows) scroller.scrollTop = scroller.scrollHeight;
}

// ---- one answer on the page ----

class Answer {
  constructor() {
    this.item = element("li", "assistant");
    this.text = element("div", "answer waiting");
    this.item.append(this.text);
    $("messages").append(this.item);
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.begin = performance.now();
    this.frame = 0;
  }
  fold(className, title) {
    const details = element("details", className), summary = element("summary"), text = element("div", "plain");
    summary.append(...title);
    text.tabIndex = 0;
    details.append(summary, text);
    if (className === "call") this.item.append(details);
    else this.item.insertBefore(details, this.text);
    return { details, summary, text };
  }
  add(delta) {
    if (delta.reasoning_content) {
      if (!this.thought) this.thought = this.fold("thinking", ["Thinking …"]);
      this.reasoning += delta.reasoning_content;
    }
    if (delta.content) {
      if (!this.content) this.thoughtEnd = performance.now();
      this.content += delta.content;
    }
    for (const part of delta.tool_calls || []) {
      let call = this.calls[part.index];
      if (!call) {
        call = this.calls[part.index] = { id: part.id, name: part.function.name, arguments: "" };
        call.view = this.fold("call", ["Calls ", element("b", "", call.name)]);
        call.view.details.open = true;
      }
      call.arguments += part.function.arguments || "";
    }
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }
  // Once a frame: tokens come faster than the screen.
  draw() {
    this.frame = 0;
    if (this.thought) this.thought.text.textContent = this.reasoning;
    if (this.content) Markdown.show(this.text, this.content);
    for (const call of this.calls) call.view.text.textContent = call.arguments;
    this.text.classList.toggle("waiting", !this.content && !this.isDone);
    follow();
  }
  finish() {
    cancelAnimationFrame(this.frame);
    this.isDone = true;
    if (this.thought) {
      const seconds = ((this.thoughtEnd || performance.now()) - this.begin) / 1000;
      this.thought.summary.textContent = `Thought for ${seconds.toFixed(1)} s`;
      if (!this.content && !this.calls.length) this.thought.details.open = true;  // there is nothing else to read
    }
    for (const call of this.calls) {
      try {
        call.arguments_shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
      } catch { /* shown as it came */ }
    }
    this.draw();
    for (const call of this.calls) call.view.text.textContent = call.arguments_shown || call.arguments;
  }
  end(reason, usage) {
    this.finish();
    const seconds = (performance.now() - this.begin) / 1000, parts = [];
    if (usage) {
      parts.push(`${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`);
      if (seconds > 0) parts.push(`${(usage.completion_tokens / seconds).toFixed(1)} tokens/s`);
      if (usage.prompt_cache_hit_tokens) parts.push(`${usage.prompt_cache_hit_tokens} of ${usage.prompt_tokens} prompt tokens cached`);
    }
    if (reason === "length") parts.push("cut off at the token limit");
    else if (reason && reason !== "stop" && reason !== "tool_calls") parts.push(reason);
    this.offer(parts);
  }
  fail(message) {
    this.finish();
    const error = element("p", "error", message);
    error.setAttribute("role", "alert");
    this.item.append(error);
    this.offer([]);
  }
  offer(notes) {
    for (const old of document.querySelectorAll(".again")) old.remove();
    const row = element("div", "actions");
    if (this.content) {
      const copy = element("button", "link", "Copy");
      copy.addEventListener("click", () => copyText(copy, this.content));
      row.append(copy);
    }
    const again = element("button", "link again", "Regenerate");
    again.title = "Alt+R";
    again.addEventListener("click", regenerate);
    row.append(again);
    if (notes.length) row.append(element("span", "note", notes.join(" · ")));
    for (const button of row.querySelectorAll("button")) button.type = "button";
    this.item.append(row);
    follow();
  }
  message(isWhole) {
    const made = { role: "assistant", content: this.content };
    if (this.reasoning) made.reasoning_content = this.reasoning;
    if (isWhole && this.calls.length) {
      made.tool_calls = this.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    return made;
  }
}

// ---- asking ----

function request() {
  const thinks = $("thinking").checked;
  const body = { model: $("model").value, messages: history.map((entry) => entry.message), stream: true, thinking: { type: thinks ? "enabled" : "disabled" } };
  if ($("system").value) body.messages.unshift({ role: "system", content: $("system").value });
  if (thinks) body.reasoning_effort = $("effort").value;
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

async function refusal(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* no JSON */ }
  if (response.status === 401) {
    showSettings(true);
    $("key").focus();
    return new Error(`This server wants an API key: enter it in the settings. (${message})`);
  }
  return new Error(message);
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  $("clear").disabled = history.length === 0;
  $("empty").hidden = history.length > 0;
  for (const button of document.querySelectorAll(".again")) button.disabled = Boolean(running);
  $("messages").setAttribute("aria-busy", String(Boolean(running)));
  updateSend();
}

async function answer() {
  const controller = new AbortController();
  setRunning(controller);
  const shown = new Answer();
  follow(true);
  let reason = null, usage = null, isWhole = false;
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(request()), signal: controller.signal });
    if (!response.ok) throw await refusal(response);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      if (choice) {
        shown.add(choice.delta);
        reason = choice.finish_reason || reason;
      }
      usage = chunk.usage || usage;
    }
    if (!reason) throw new Error("The answer broke off: the connection to the server was lost.");
    isWhole = reason === "tool_calls" || reason === "stop";
    shown.end(reason, usage);
  } catch (error) {
    if (controller.signal.aborted) shown.end("stopped", null);
    else shown.fail(error instanceof TypeError ? "The server cannot be reached." : error instanceof SyntaxError ? "The server's answer could not be read." : error.message);
  }
  if (running !== controller) return;  // a new chat has begun
  if (shown.content || shown.reasoning || (isWhole && shown.calls.length)) history.push({ message: shown.message(isWhole), item: shown.item });
  setRunning(null);
  if (isWhole && shown.calls.length) askForResults(shown.calls);
  else $("input").focus({ preventScroll: true });
}

function pendingCalls() {
  const last = history.findLast((entry) => entry.message.role !== "tool");
  const calls = (last && last.message.tool_calls) || [];
  return calls.filter((call) => !history.some((entry) => entry.message.tool_call_id === call.id));
}

// Calls wait for results, which the user writes.
function askForResults(calls) {
  const forms = calls.map((call) => {
    const item = element("li", "result"), form = element("form"), label = element("label"), input = element("textarea"), button = element("button", "", "Send result");
    label.append(`Result of ${call.name}`, input);
    input.rows = 2;
    input.dir = "auto";
    form.append(label, button);
    item.append(form);
    $("messages").append(item);
    const give = () => {
      if (input.disabled || running) return;
      input.disabled = true;
      button.remove();
      history.push({ message: { role: "tool", tool_call_id: call.id, content: input.value }, item });
      if (pendingCalls().length === 0) answer();
      else document.querySelector(".result textarea:enabled").focus();
    };
    form.addEventListener("submit", (event) => { event.preventDefault(); give(); });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); give(); }
    });
    return input;
  });
  follow(true);
  forms[0].focus();
}

function toolsAreGood() {
  let fault = "";
  try {
    if ($("tools").value.trim() && !Array.isArray(JSON.parse($("tools").value))) fault = "Tools must be a JSON list.";
  } catch (error) {
    fault = "Tools are no valid JSON: " + error.message;
  }
  $("tools-error").textContent = fault;
  $("tools-error").hidden = !fault;
  return !fault;
}

function send(text) {
  if (!text.trim() || running) return;
  if (!toolsAreGood()) {
    showSettings(true);
    return $("tools").focus();
  }
  // Calls that nobody answered: the API wants a result for each.
  for (const call of pendingCalls()) history.push({ message: { role: "tool", tool_call_id: call.id, content: "(no result)" }, item: null });
  for (const item of document.querySelectorAll(".result:has(:enabled)")) item.remove();
  $("input").value = "";
  grow();
  const item = element("li", "user"), shown = element("div", "plain", text);
  shown.dir = "auto";
  item.append(shown);
  $("messages").append(item);
  history.push({ message: { role: "user", content: text }, item });
  answer();
}

// Takes everything behind the last message of the user back and asks again.
function regenerate() {
  const last = history.findLastIndex((entry) => entry.message.role === "user");
  if (running || last < 0) return;
  while (history.length > last + 1) history.pop();
  while ($("messages").lastChild !== history[last].item) $("messages").lastChild.remove();
  answer();
}

function newChat() {
  const before = running;
  running = null;
  if (before) before.abort();
  history.length = 0;
  $("messages").replaceChildren();
  setRunning(null);
  $("input").focus();
}

// ---- controls ----

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + "px";
  updateSend();
}
function updateSend() {
  $("send").disabled = !$("input").value.trim();
}
function showSettings(isShown) {
  $("settings").hidden = !isShown;
  $("settings-toggle").setAttribute("aria-expanded", String(isShown));
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send($("input").value); });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send($("input").value); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) running.abort();
    else if (!$("settings").hidden) { showSettings(false); $("settings-toggle").focus(); }
  }
  if (event.code === "KeyR" && event.altKey) { event.preventDefault(); regenerate(); }
});
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", newChat);
$("settings-toggle").addEventListener("click", () => showSettings($("settings").hidden));
$("settings-close").addEventListener("click", () => { showSettings(false); $("settings-toggle").focus(); });
$("thinking").addEventListener("change", () => { $("effort-label").hidden = !$("thinking").checked; });
$("effort-label").hidden = !$("thinking").checked;
$("tools").addEventListener("change", toolsAreGood);
for (const example of document.querySelectorAll("#examples button")) example.addEventListener("click", () => send(example.textContent));
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); loadModels(); });

let hasModels = false;
async function loadModels() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) return;
    $("model").replaceChildren(...(await response.json()).data.map((model) => element("option", "", model.id)));
    hasModels = true;
  } catch { /* the light in the corner shows that the server is away */ }
}

// ---- gauges ----

let before = null;

function sum(text, name) {
  let total = 0, found = false;
  for (const match of text.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, "gm"))) { total += Number(match[1]); found = true; }
  return found ? total : null;
}
function percent(part, whole) {
  return whole > 0 ? Math.round(100 * part / whole) + " %" : "–";
}
function setState(name) {
  $("state").className = name;
  $("state").setAttribute("aria-label", { ready: "server is ready", away: "server cannot be reached", connecting: "connecting" }[name]);
  $("state").title = $("state").getAttribute("aria-label");
}

async function updateGauges() {
  if (document.hidden) return;
  try {
    const response = await fetch("/metrics", { headers: headers() });
    if (!response.ok) throw new Error();
    const text = await response.text();
    const now = { time: performance.now(), tokens: sum(text, "deepinfer_output_tokens_total") || 0 };
    if (before) $("g-rate").textContent = Math.max(0, Math.round((now.tokens - before.tokens) / (now.time - before.time) * 1000));
    before = now;
    $("g-running").textContent = sum(text, "deepinfer_requests_running") ?? "–";
    const hits = sum(text, 'deepinfer_prompt_tokens_total\\{kind="hit"\\}'), misses = sum(text, 'deepinfer_prompt_tokens_total\\{kind="miss"\\}');
    $("g-hits").textContent = percent(hits, hits + misses);
    $("g-accepted").textContent = percent(sum(text, "deepinfer_spec_accepted_tokens_total"), sum(text, "deepinfer_spec_draft_tokens_total"));
    setState("ready");
    if (!hasModels && !$("key").value) loadModels();
  } catch {
    for (const id of ["g-rate", "g-running", "g-hits", "g-accepted"]) $(id).textContent = "–";
    setState("away");
    before = null;
  }
}

loadModels();
updateGauges();
setInterval(updateGauges, 2000);
document.addEventListener("visibilitychange", updateGauges);
