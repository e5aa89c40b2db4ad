// SPDX-License-Identifier: Apache-2.0
#include "text/python_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/json.h"

namespace deepinfer::text {

namespace {

// Shortest round-trip digits, laid out as repr() does (kPython) or with the wider positional range and unpadded exponent of
// kCompact.
void AppendDouble(double value, JsonStyle style, std::string& out) {
  if (!std::isfinite(value)) {  // cannot come from a JSON text
    out += "null";
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());

  const int lowest_positional = style == JsonStyle::kPython ? -4 : -5;
  if (exponent < lowest_positional || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) {
      out += '.';
      out += digits.substr(1);
    }
    out += exponent < 0 ? "e-" : "e+";
    const std::string magnitude = std::to_string(std::abs(exponent));
    if (style == JsonStyle::kPython && magnitude.size() < 2) out += '0';
    // kCompact prints a positive exponent with its sign too, but never pads.
    out += magnitude;
  } else if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out += digits;
  } else {
    const size_t integer_digits = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= integer_digits) {
      out += digits;
      out.append(integer_digits - digits.size(), '0');
      out += ".0";
    } else {
      out.append(digits, 0, integer_digits);
      out += '.';
      out.append(digits, integer_digits, std::string::npos);
    }
  }
}

void AppendQuoted(std::string_view text, std::string& out) {
  out += '"';
  AppendJsonEscaped(text, out);
  out += '"';
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string& out) {
  size_t done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, done, i - done);
    done = i + 1;
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default: {
        constexpr char kHex[] = "0123456789abcdef";
        out += "\\u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
      }
    }
  }
  out.append(text, done, text.size() - done);
}

void AppendJson(const Json& json, JsonStyle style, std::string& out) {
  const std::string_view comma = style == JsonStyle::kPython ? ", " : ",";
  const std::string_view colon = style == JsonStyle::kPython ? ": " : ":";
  switch (json.type()) {
    case Json::value_t::object: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : json.items()) {
        if (!first) out += comma;
        first = false;
        AppendQuoted(key, out);
        out += colon;
        AppendJson(value, style, out);
      }
      out += '}';
      break;
    }
    case Json::value_t::array: {
      out += '[';
      bool first = true;
      for (const Json& value : json) {
        if (!first) out += comma;
        first = false;
        AppendJson(value, style, out);
      }
      out += ']';
      break;
    }
    case Json::value_t::string: AppendQuoted(json.get_ref<const std::string&>(), out); break;
    case Json::value_t::boolean: out += json.get<bool>() ? "true" : "false"; break;
    case Json::value_t::number_integer: out += std::to_string(json.get<int64_t>()); break;
    case Json::value_t::number_unsigned: out += std::to_string(json.get<uint64_t>()); break;
    case Json::value_t::number_float: AppendDouble(json.get<double>(), style, out); break;
    default: out += "null"; break;
  }
}

std::string PythonJson(const Json& json) {
  std::string out;
  AppendJson(json, JsonStyle::kPython, out);
  return out;
}

std::string CompactJson(const Json& json) {
  std::string out;
  AppendJson(json, JsonStyle::kCompact, out);
  return out;
}

bool IsJsonText(std::string_view text) {
  // The library takes a NUL byte for the end of the text; in JSON it is an error anywhere.
  return text.find('\0') == std::string_view::npos && Json::accept(text.begin(), text.end());
}

}  // namespace deepinfer::text
