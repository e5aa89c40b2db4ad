// SPDX-License-Identifier: Apache-2.0
#include "constrain/schema_prepass.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "constrain/regex_rewrite.h"
#include "constrain/schema_merge.h"
#include "core/escape.h"
#include "core/json.h"

namespace deepinfer::constrain {
namespace {

// References to references, merges in one schema, values copied for them: more would be a document made to take time.
constexpr int kMaxReferenceHops = 16;
constexpr int kMaxMerges = 2000;
constexpr int64_t kMaxCopiedValues = 200'000;

constexpr std::string_view kKnownFormats[] = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer"};
// Formats that the library takes too widely: leading zeros in ipv4, days that a month does not have.
constexpr std::pair<std::string_view, const char*> kExactFormats[] = {
    {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$"},
    {"date",
     "^([0-9]{4}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[1-9]|1[0-9]|2[0-8])))"
     "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)$"},
};
constexpr const char* kIgnored[] = {"contains", "maxContains", "uniqueItems", "not", "if", "dependentRequired",
                                    "dependentSchemas"};
constexpr const char* kDeciding[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr const char* kSchemaMaps[] = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"};
constexpr const char* kSchemaLists[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr const char* kSchemas[] = {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems",
                                    "propertyNames"};

bool HasEffect(std::string_view key) {
  constexpr std::string_view kNone[] = {"title", "description", "default", "examples", "$comment", "readOnly", "writeOnly",
                                        "deprecated", "$schema", "$id", "$defs", "definitions", "type"};
  return std::find(std::begin(kNone), std::end(kNone), key) == std::end(kNone);
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// One step of a JSON pointer in a reference: percent- and ~-decoded.
std::string DecodeStep(std::string_view step) {
  std::string plain;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size() && HexValue(step[i + 1]) >= 0 && HexValue(step[i + 2]) >= 0) {
      plain += static_cast<char>(HexValue(step[i + 1]) * 16 + HexValue(step[i + 2]));
      i += 2;
    } else {
      plain += step[i];
    }
  }
  std::string out;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1')) {
      out += plain[++i] == '0' ? '~' : '/';
    } else {
      out += plain[i];
    }
  }
  return out;
}

int64_t CountValues(const Json& root) {
  int64_t count = 0;
  std::vector<const Json*> open = {&root};
  while (!open.empty()) {
    const Json& at = *open.back();
    open.pop_back();
    ++count;
    for (const Json& child : at) {
      if (child.is_structured()) {
        open.push_back(&child);
      } else {
        ++count;
      }
    }
  }
  return count;
}

class Preparer {
 public:
  explicit Preparer(const Json& root) : root_(root), merges_allowed_(DumpJson(root).find("/allOf/") == std::string::npos) {}

  Status Prepare(Json* schema) { return Visit(schema, 0); }
  bool is_changed() const { return is_changed_; }
  std::vector<std::string> TakeWarnings() { return std::move(warnings_); }

 private:
  void Warn(std::string text) {
    if (seen_.insert(text).second) warnings_.push_back(std::move(text));
  }

  // Null if it leads nowhere or out of the document.
  const Json* Resolve(const std::string& reference) const {
    if (reference == "#") return &root_;
    if (reference.rfind("#/", 0) != 0) return nullptr;
    const Json* at = &root_;
    for (size_t begin = 2; begin <= reference.size();) {
      const size_t end = std::min(reference.find('/', begin), reference.size());
      const std::string step = DecodeStep(std::string_view(reference).substr(begin, end - begin));
      if (at->is_object()) {
        const auto found = at->find(step);
        if (found == at->end()) return nullptr;
        at = &*found;
      } else if (at->is_array() && !step.empty() && step.size() < 7 &&
                 step.find_first_not_of("0123456789") == std::string::npos && std::stoul(step) < at->size()) {
        at = &(*at)[std::stoul(step)];
      } else {
        return nullptr;
      }
      begin = end + 1;
    }
    return at;
  }

  Status Visit(Json* node, int hops) {
    if (!node->is_object()) return Status::Ok();
    for (const char* key : kSchemaMaps) {
      if (const auto map = node->find(key); map != node->end() && map->is_object()) {
        for (auto& [name, schema] : map->items()) DI_RETURN_IF_ERROR(Visit(&schema, hops));
      }
    }
    for (const char* key : kSchemaLists) {
      if (const auto list = node->find(key); list != node->end() && list->is_array()) {
        for (Json& schema : *list) DI_RETURN_IF_ERROR(Visit(&schema, hops));
      }
    }
    for (const char* key : kSchemas) {
      if (const auto schema = node->find(key); schema != node->end()) DI_RETURN_IF_ERROR(Visit(&*schema, hops));
    }
    ReducePatterns(node);
    DI_RETURN_IF_ERROR(MergeAllOf(node, hops));
    ListIgnored(*node);
    MakeFormatsExact(node);
    return Status::Ok();
  }

  void ReducePatterns(Json* node) {
    const auto pattern = node->find("pattern");
    if (pattern != node->end() && pattern->is_string()) {
      std::string reduced = ReduceNestedRepetition(pattern->get_ref<const std::string&>());
      if (reduced != pattern->get_ref<const std::string&>()) {
        *pattern = std::move(reduced);
        is_changed_ = true;
      }
    }
  }

  void MakeFormatsExact(Json* node) {
    const auto format = node->find("format");
    if (format == node->end() || node->contains("pattern") || node->value("type", Json()) != "string") return;
    for (const auto& [name, pattern] : kExactFormats) {
      if (!format->is_string() || format->get_ref<const std::string&>() != name) continue;
      node->erase("format");
      (*node)["pattern"] = pattern;
      is_changed_ = true;
      return;
    }
  }

  // The entry itself, or what it refers to; nullopt when it cannot be told.
  Result<std::optional<Json>> Entry(const Json& entry, int hops) {
    if (!entry.is_object() || !entry.contains("$ref")) return std::optional<Json>(entry);
    const Json& reference = entry["$ref"];
    const Json* target = reference.is_string() ? Resolve(reference.get_ref<const std::string&>()) : nullptr;
    if (target == nullptr || hops >= kMaxReferenceHops || num_merges_ > kMaxMerges) return std::optional<Json>();
    num_copied_ += CountValues(*target);
    if (num_copied_ > kMaxCopiedValues) return std::optional<Json>();
    ++num_merges_;
    Json copy = *target;
    DI_RETURN_IF_ERROR(Visit(&copy, hops + 1));
    if (copy.is_object() && copy.contains("$ref")) return Entry(copy, hops + 1);
    return std::optional<Json>(std::move(copy));
  }

  Status MergeAllOf(Json* node, int hops) {
    const auto all_of = node->find("allOf");
    if (all_of == node->end() || !all_of->is_array() || all_of->empty()) return Status::Ok();
    const Json entries = *all_of;
    Json merged = *node;
    merged.erase("allOf");
    const bool has_siblings = std::any_of(merged.items().begin(), merged.items().end(),
                                          [](const auto& item) { return HasEffect(item.key()) || item.key() == "type"; });
    if (entries.size() == 1 && !has_siblings) return Status::Ok();
    if (!merges_allowed_) {
      Warn("allOf of several entries");
      return Status::Ok();
    }
    for (const Json& entry : entries) {
      DI_ASSIGN_OR_RETURN(std::optional<Json> schema, Entry(entry, hops));
      if (schema && ++num_merges_ <= kMaxMerges) {
        DI_ASSIGN_OR_RETURN(schema, MergeSchemas(merged, *schema));
      } else {
        schema.reset();
      }
      if (!schema) {
        Warn("allOf of several entries");
        return Status::Ok();
      }
      merged = *std::move(schema);
    }
    *node = std::move(merged);
    is_changed_ = true;
    return Status::Ok();
  }

  void ListIgnored(const Json& node) {
    for (const char* key : kIgnored) {
      if (node.contains(key)) Warn(key);
    }
    for (const char* key : kDeciding) {
      if (!node.contains(key)) continue;
      for (const auto& [sibling, value] : node.items()) {
        if (sibling != key && HasEffect(sibling)) Warn(fmt::format("{} beside {}", Escape(sibling), key));
      }
      break;
    }
    const auto format = node.find("format");
    const bool has_format = format != node.end() && format->is_string();
    const bool is_known = has_format && std::find(std::begin(kKnownFormats), std::end(kKnownFormats),
                                                  format->get_ref<const std::string&>()) != std::end(kKnownFormats);
    if (has_format && !is_known) Warn(fmt::format("format {}", Escape(format->get_ref<const std::string&>(), 40)));
    if ((node.contains("minLength") || node.contains("maxLength")) && (node.contains("pattern") || is_known)) {
      Warn("minLength and maxLength beside pattern or format");
    }
    if (node.contains("multipleOf") && node.value("type", Json()) == "number") Warn("multipleOf of numbers");
    if (const auto ref = node.find("$ref"); ref != node.end() && ref->is_string()) {
      const std::string& to = ref->get_ref<const std::string&>();
      if (to != "#" && to.rfind("#/", 0) != 0) Warn("$ref out of the document");
    }
  }

  const Json& root_;
  bool merges_allowed_;
  bool is_changed_ = false;
  int num_merges_ = 0;
  int64_t num_copied_ = 0;
  std::set<std::string> seen_;
  std::vector<std::string> warnings_;
};

// What a structural tag holds inside: schemas and patterns.
Status VisitTag(Json* node, bool* is_changed, std::vector<std::string>* warnings) {
  if (node->is_array()) {
    for (Json& item : *node) DI_RETURN_IF_ERROR(VisitTag(&item, is_changed, warnings));
    return Status::Ok();
  }
  if (!node->is_object()) return Status::Ok();
  const Json type = node->value("type", Json());
  if (const auto schema = node->find("json_schema"); type == "json_schema" && schema != node->end()) {
    const Json root = *schema;
    Preparer preparer(root);
    DI_RETURN_IF_ERROR(preparer.Prepare(&*schema));
    *is_changed |= preparer.is_changed();
    for (std::string& warning : preparer.TakeWarnings()) warnings->push_back(std::move(warning));
    return Status::Ok();
  }
  if (const auto pattern = node->find("pattern"); type == "regex" && pattern != node->end() && pattern->is_string()) {
    std::string reduced = ReduceNestedRepetition(pattern->get_ref<const std::string&>());
    *is_changed |= reduced != pattern->get_ref<const std::string&>();
    *pattern = std::move(reduced);
    return Status::Ok();
  }
  for (auto& [key, value] : node->items()) DI_RETURN_IF_ERROR(VisitTag(&value, is_changed, warnings));
  return Status::Ok();
}

}  // namespace

Result<PreparedText> PrepareSchema(std::string_view schema_text) {
  const Result<Json> root = ParseJson(schema_text);
  if (!root.ok()) return InvalidArgument(root.status().message(), "so_args.schema");
  Json schema = *root;
  Preparer preparer(*root);
  DI_RETURN_IF_ERROR(preparer.Prepare(&schema));
  PreparedText out;
  out.text = preparer.is_changed() ? DumpJson(schema) : std::string(schema_text);
  out.warnings = preparer.TakeWarnings();
  return out;
}

Result<PreparedText> PrepareStructuralTag(std::string_view tag_text) {
  Result<Json> tag = ParseJson(tag_text);
  if (!tag.ok()) return InvalidArgument(tag.status().message(), "so_args.schema");
  PreparedText out;
  bool is_changed = false;
  DI_RETURN_IF_ERROR(VisitTag(&*tag, &is_changed, &out.warnings));
  out.text = is_changed ? DumpJson(*tag) : std::string(tag_text);
  std::sort(out.warnings.begin(), out.warnings.end());
  out.warnings.erase(std::unique(out.warnings.begin(), out.warnings.end()), out.warnings.end());
  return out;
}

}  // namespace deepinfer::constrain
