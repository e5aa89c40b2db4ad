// SPDX-License-Identifier: Apache-2.0
#include "text/conversation.h"

namespace deepinfer::text {

Message Message::Text(Role role, std::string text) {
  Message message;
  message.role = role;
  message.parts.push_back({std::move(text), std::nullopt});
  return message;
}

std::string Message::JoinedText() const {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += "\n\n";
    joined += parts[i].text;
  }
  return joined;
}

}  // namespace deepinfer::text
