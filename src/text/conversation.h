// SPDX-License-Identifier: Apache-2.0
//
// The common form of a conversation: what every protocol converts its request into and the prompt renderer reads. Plain
// data, no JSON types: schemas are kept as the text in which the prompt shows them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer::text {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// An image of the prompt. `source` keeps the client's spelling: an http(s) address or a data URL.
struct ImageRef {
  enum class Kind { kUrl, kDataUrl };
  Kind kind = Kind::kUrl;
  std::string source;
  std::string detail = "high";  // low, high, original, auto
  std::string path;             // place in the request, for error messages: ".messages[1]"
};

// One part of a message: text, or an image when `image` is set. Parts are joined by blank lines in the prompt.
struct ContentPart {
  std::string text;
  std::optional<ImageRef> image;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as the client sent it, not necessarily valid
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> parts;
  // Assistant only.
  std::optional<std::string> reasoning;
  std::vector<ToolCall> tool_calls;
  bool prefix = false;  // last message: the model continues it
  // Tool only.
  std::string tool_call_id;
  // Tools that become visible after this message (not of an assistant; protocols.md 2.6), as indexes of Conversation::tools. A
  // user or tool message that has some ends its turn.
  std::vector<size_t> added_tools;

  static Message Text(Role role, std::string text);
  // Text of the parts joined by blank lines; images count as empty text.
  std::string JoinedText() const;
};

struct Tool {
  std::string name;
  std::string description;
  std::string parameters = "{}";  // JSON schema in the prompt's JSON style (python_json.h)
  bool defer_loading = false;     // hidden until a message adds it
};

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  std::string schema;  // kJsonSchema: the client's schema in the prompt's JSON style
};

inline constexpr int kDefaultEffort = 75;

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;           // what tool_choice left over
  bool tool_call_required = false;   // the answer starts inside a calls block
  bool thinking = true;
  int effort = kDefaultEffort;       // 1..100
  ResponseFormat response_format;
};

}  // namespace deepinfer::text
