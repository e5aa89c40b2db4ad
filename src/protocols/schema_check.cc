// SPDX-License-Identifier: Apache-2.0
#include "protocols/schema_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/json.h"
#include "protocols/regex_syntax.h"
#include "protocols/uri.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

enum Draft { kDraft4, kDraft6, kDraft7, kDraft2019, kDraft2020 };

// What a keyword's value must be. Kinds that hold sub-schemas are walked.
enum class Kind {
  kSchema,
  kBoolOrSchema,        // draft 4
  kSchemaMap,           // name -> schema
  kRegexSchemaMap,      // pattern -> schema
  kSchemaList,          // at least one
  kSchemaOrList,        // items before 2020-12
  kDependencies,        // name -> schema or list of names
  kType,
  kString,
  kRegex,
  kCount,               // integer >= 0
  kNumber,
  kPositive,            // number > 0
  kBool,
  kList,
  kNonEmptyList,        // distinct items, at least one
  kNames,               // distinct strings
  kNonEmptyNames,
  kNamesMap,            // name -> distinct strings
  kObject,
};

struct Keyword {
  std::string_view name;
  Kind kind;
  Draft first = kDraft4;
  Draft last = kDraft2020;
};

constexpr Keyword kKeywords[] = {
    {"$id", Kind::kString, kDraft6},
    {"id", Kind::kString, kDraft4, kDraft4},
    {"$schema", Kind::kString},
    {"$ref", Kind::kString, kDraft6},
    {"$anchor", Kind::kString, kDraft2019},
    {"$dynamicAnchor", Kind::kString, kDraft2020},
    {"$dynamicRef", Kind::kString, kDraft2020},
    {"$recursiveRef", Kind::kString, kDraft2019, kDraft2019},
    {"$recursiveAnchor", Kind::kBool, kDraft2019, kDraft2019},
    {"$vocabulary", Kind::kObject, kDraft2019},
    {"$comment", Kind::kString, kDraft7},
    {"$defs", Kind::kSchemaMap, kDraft2019},
    {"definitions", Kind::kSchemaMap},
    {"title", Kind::kString},
    {"description", Kind::kString},
    {"readOnly", Kind::kBool, kDraft7},
    {"writeOnly", Kind::kBool, kDraft7},
    {"deprecated", Kind::kBool, kDraft2019},
    {"examples", Kind::kList, kDraft6},
    {"multipleOf", Kind::kPositive},
    {"maximum", Kind::kNumber},
    {"exclusiveMaximum", Kind::kBool, kDraft4, kDraft4},
    {"exclusiveMaximum", Kind::kNumber, kDraft6},
    {"minimum", Kind::kNumber},
    {"exclusiveMinimum", Kind::kBool, kDraft4, kDraft4},
    {"exclusiveMinimum", Kind::kNumber, kDraft6},
    {"maxLength", Kind::kCount},
    {"minLength", Kind::kCount},
    {"pattern", Kind::kRegex},
    {"format", Kind::kString},
    {"contentMediaType", Kind::kString, kDraft7},
    {"contentEncoding", Kind::kString, kDraft7},
    {"contentSchema", Kind::kSchema, kDraft2019},
    {"additionalItems", Kind::kBoolOrSchema, kDraft4, kDraft4},
    {"additionalItems", Kind::kSchema, kDraft6, kDraft2019},
    {"items", Kind::kSchemaOrList, kDraft4, kDraft2019},
    {"items", Kind::kSchema, kDraft2020},
    {"prefixItems", Kind::kSchemaList, kDraft2020},
    {"maxItems", Kind::kCount},
    {"minItems", Kind::kCount},
    {"uniqueItems", Kind::kBool},
    {"contains", Kind::kSchema, kDraft6},
    {"maxContains", Kind::kCount, kDraft2019},
    {"minContains", Kind::kCount, kDraft2019},
    {"unevaluatedItems", Kind::kSchema, kDraft2019},
    {"maxProperties", Kind::kCount},
    {"minProperties", Kind::kCount},
    {"required", Kind::kNonEmptyNames, kDraft4, kDraft4},
    {"required", Kind::kNames, kDraft6},
    {"properties", Kind::kSchemaMap},
    {"patternProperties", Kind::kRegexSchemaMap},
    {"additionalProperties", Kind::kBoolOrSchema, kDraft4, kDraft4},
    {"additionalProperties", Kind::kSchema, kDraft6},
    {"unevaluatedProperties", Kind::kSchema, kDraft2019},
    {"dependencies", Kind::kDependencies},
    {"dependentSchemas", Kind::kSchemaMap, kDraft2019},
    {"dependentRequired", Kind::kNamesMap, kDraft2019},
    {"propertyNames", Kind::kSchema, kDraft6},
    {"enum", Kind::kNonEmptyList, kDraft4, kDraft6},
    {"enum", Kind::kList, kDraft7},
    {"type", Kind::kType},
    {"allOf", Kind::kSchemaList},
    {"anyOf", Kind::kSchemaList},
    {"oneOf", Kind::kSchemaList},
    {"not", Kind::kSchema},
    {"if", Kind::kSchema, kDraft7},
    {"then", Kind::kSchema, kDraft7},
    {"else", Kind::kSchema, kDraft7},
};

const Keyword* FindKeyword(std::string_view name, Draft draft) {
  static const auto* const table = [] {
    auto* by_name = new std::unordered_map<std::string_view, std::vector<const Keyword*>>();
    for (const Keyword& keyword : kKeywords) (*by_name)[keyword.name].push_back(&keyword);
    return by_name;
  }();
  const auto it = table->find(name);
  if (it == table->end()) return nullptr;
  for (const Keyword* keyword : it->second) {
    if (draft >= keyword->first && draft <= keyword->last) return keyword;
  }
  return nullptr;
}

struct MetaSchema {
  std::string_view uri;  // without scheme and final '#'
  Draft draft;
};

constexpr MetaSchema kMetaSchemas[] = {
    {"json-schema.org/draft-04/schema", kDraft4},
    {"json-schema.org/draft-06/schema", kDraft6},
    {"json-schema.org/draft-07/schema", kDraft7},
    {"json-schema.org/draft/2019-09/schema", kDraft2019},
    {"json-schema.org/draft/2020-12/schema", kDraft2020},
};

std::optional<Draft> DraftOf(std::string_view uri) {
  while (!uri.empty() && uri.back() == '#') uri.remove_suffix(1);
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (uri.substr(0, scheme.size()) == scheme) {
      uri.remove_prefix(scheme.size());
      break;
    }
  }
  for (const MetaSchema& meta : kMetaSchemas) {
    if (uri == meta.uri) return meta.draft;
  }
  return std::nullopt;
}

Status NotOfType(const Json& value, std::string_view type) {
  return InvalidArgument(fmt::format("{} is not of type \"{}\"", text::CompactJson(value), type));
}

Status NoneOfAnyOf(const Json& value) {
  return InvalidArgument(fmt::format("{} is not valid under any of the schemas listed in the 'anyOf' keyword",
                                     text::CompactJson(value)));
}

// Integers have no fraction; 1.0 is one.
bool IsInteger(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && value.get<double>() == std::floor(value.get<double>());
}

bool IsSimpleType(const Json& value) {
  if (!value.is_string()) return false;
  for (const char* type : {"array", "boolean", "integer", "null", "number", "object", "string"}) {
    if (value.get_ref<const std::string&>() == type) return true;
  }
  return false;
}

// Numbers that are equal have one spelling, keys one order: equal values give equal texts.
void AppendCanonical(const Json& value, std::string& out) {
  if (value.is_object()) {
    std::vector<std::pair<const std::string*, const Json*>> members;
    for (auto it = value.begin(); it != value.end(); ++it) members.emplace_back(&it.key(), &*it);
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return *a.first < *b.first; });
    out += '{';
    for (const auto& [key, member] : members) {
      text::AppendJsonEscaped(*key, out);
      out += "\":";
      AppendCanonical(*member, out);
      out += ',';
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const Json& item : value) {
      AppendCanonical(item, out);
      out += ',';
    }
    out += ']';
  } else if (value.is_number_integer()) {
    text::AppendJson(value, text::JsonStyle::kCompact, out);
  } else if (value.is_number_float() && IsInteger(value) && std::abs(value.get<double>()) < 9.0e18) {
    out += std::to_string(static_cast<int64_t>(value.get<double>()));
  } else {
    text::AppendJson(value, text::JsonStyle::kCompact, out);
  }
}

bool HasDistinctItems(const Json& list) {
  std::unordered_set<std::string> seen;
  for (const Json& item : list) {
    std::string canonical;
    AppendCanonical(item, canonical);
    if (!seen.insert(std::move(canonical)).second) return false;
  }
  return true;
}

class SchemaChecker {
 public:
  SchemaChecker(const Json& root, Draft draft) : root_(root), draft_(draft) {}

  Status Run() {
    DI_RETURN_IF_ERROR(Schema(root_));
    Collect(root_, "");
    for (const Reference& reference : references_) DI_RETURN_IF_ERROR(Resolve(reference));
    return Status::Ok();
  }

 private:
  struct Reference {
    const Json* root;  // of the resource that holds it
    std::string base;  // URI of that resource, empty if it has none
    std::string target;
  };

  Status Schema(const Json& schema) {
    if (draft_ == kDraft4) {
      if (!schema.is_object()) return NotOfType(schema, "object");
    } else if (!schema.is_object() && !schema.is_boolean()) {
      return InvalidArgument(
          fmt::format("{} is not of types \"boolean\", \"object\"", text::CompactJson(schema)));
    }
    if (!schema.is_object()) return Status::Ok();
    for (const auto& [key, value] : schema.items()) {
      if (const Keyword* keyword = FindKeyword(key, draft_)) DI_RETURN_IF_ERROR(Value(keyword->kind, value));
    }
    return Status::Ok();
  }

  Status Value(Kind kind, const Json& value) {
    switch (kind) {
      case Kind::kSchema: return Schema(value);
      case Kind::kBoolOrSchema:
        if (value.is_boolean()) return Status::Ok();
        return value.is_object() ? Schema(value) : NoneOfAnyOf(value);
      case Kind::kSchemaMap:
      case Kind::kRegexSchemaMap:
        if (!value.is_object()) return NotOfType(value, "object");
        for (const auto& [key, member] : value.items()) {
          if (kind == Kind::kRegexSchemaMap && draft_ >= kDraft6) DI_RETURN_IF_ERROR(Regex(key));
          DI_RETURN_IF_ERROR(Schema(member));
        }
        return Status::Ok();
      case Kind::kSchemaList:
        if (!value.is_array()) return NotOfType(value, "array");
        if (value.empty()) return InvalidArgument("[] has less than 1 item");
        for (const Json& item : value) DI_RETURN_IF_ERROR(Schema(item));
        return Status::Ok();
      case Kind::kSchemaOrList: {
        const bool is_ok = value.is_array() ? Value(Kind::kSchemaList, value).ok() : Schema(value).ok();
        return is_ok ? Status::Ok() : NoneOfAnyOf(value);
      }
      case Kind::kDependencies:
        if (!value.is_object()) return NotOfType(value, "object");
        for (const auto& [key, member] : value.items()) {
          const bool is_ok = member.is_array() ? Value(draft_ == kDraft4 ? Kind::kNonEmptyNames : Kind::kNames, member).ok()
                                               : Schema(member).ok();
          if (!is_ok) return NoneOfAnyOf(member);
        }
        return Status::Ok();
      case Kind::kType: {
        bool is_ok = IsSimpleType(value);
        if (value.is_array()) {
          is_ok = !value.empty() && HasDistinctItems(value);
          for (const Json& item : value) is_ok = is_ok && IsSimpleType(item);
        }
        return is_ok ? Status::Ok() : NoneOfAnyOf(value);
      }
      case Kind::kString: return value.is_string() ? Status::Ok() : NotOfType(value, "string");
      case Kind::kRegex:
        if (!value.is_string()) return NotOfType(value, "string");
        return Regex(value.get_ref<const std::string&>());
      case Kind::kCount:
        if (!IsInteger(value)) return NotOfType(value, "integer");
        if (value.get<double>() < 0) {
          return InvalidArgument(fmt::format("{} is less than the minimum of 0", text::CompactJson(value)));
        }
        return Status::Ok();
      case Kind::kNumber: return value.is_number() ? Status::Ok() : NotOfType(value, "number");
      case Kind::kPositive:
        if (!value.is_number()) return NotOfType(value, "number");
        if (!(value.get<double>() > 0)) {
          return InvalidArgument(
              fmt::format("{} is less than or equal to the minimum of 0", text::CompactJson(value)));
        }
        return Status::Ok();
      case Kind::kBool: return value.is_boolean() ? Status::Ok() : NotOfType(value, "boolean");
      case Kind::kList: return value.is_array() ? Status::Ok() : NotOfType(value, "array");
      case Kind::kNonEmptyList:
        if (!value.is_array()) return NotOfType(value, "array");
        if (value.empty()) return InvalidArgument("[] has less than 1 item");
        return Distinct(value);
      case Kind::kNames:
      case Kind::kNonEmptyNames:
        if (!value.is_array()) return NotOfType(value, "array");
        if (kind == Kind::kNonEmptyNames && value.empty()) return InvalidArgument("[] has less than 1 item");
        for (const Json& item : value) {
          if (!item.is_string()) return NotOfType(item, "string");
        }
        return Distinct(value);
      case Kind::kNamesMap:
        if (!value.is_object()) return NotOfType(value, "object");
        for (const auto& [key, member] : value.items()) DI_RETURN_IF_ERROR(Value(Kind::kNames, member));
        return Status::Ok();
      case Kind::kObject: return value.is_object() ? Status::Ok() : NotOfType(value, "object");
    }
    return Status::Ok();
  }

  static Status Distinct(const Json& list) {
    if (HasDistinctItems(list)) return Status::Ok();
    return InvalidArgument(fmt::format("{} has non-unique elements", text::CompactJson(list)));
  }

  static Status Regex(const std::string& pattern) {
    if (IsRegexSyntax(pattern)) return Status::Ok();
    return InvalidArgument(fmt::format("{} is not a \"regex\"", text::CompactJson(Json(pattern))));
  }

  // Walks the sub-schemas of a valid schema; notes resources, anchors and references.
  void Collect(const Json& schema, const std::string& outer_base, const Json* resource_root = nullptr) {
    if (!schema.is_object()) return;
    const Json* root = resource_root == nullptr ? &schema : resource_root;
    std::string base = outer_base;
    const auto string_of = [&](const char* key) -> const std::string* {
      const auto it = schema.find(key);
      return it != schema.end() && it->is_string() ? &it->get_ref<const std::string&>() : nullptr;
    };
    const std::string* ref = string_of("$ref");
    const bool hides_siblings = ref != nullptr && draft_ <= kDraft7;
    if (!hides_siblings) {
      if (const std::string* id = string_of(draft_ == kDraft4 ? "id" : "$id")) {
        if (!id->empty() && id->front() == '#') {  // an anchor, before 2019-09
          anchors_[base + *id] = &schema;
        } else {
          base = WithoutFragment(ResolveUri(base, *id));
          root = &schema;
          resources_.emplace(base, &schema);
        }
      }
      for (const char* key : {"$anchor", "$dynamicAnchor"}) {
        if (const std::string* anchor = string_of(key); anchor != nullptr && draft_ >= kDraft2019) {
          anchors_[base + "#" + *anchor] = &schema;
        }
      }
      if (const std::string* dynamic = string_of("$dynamicRef"); dynamic != nullptr && draft_ == kDraft2020) {
        references_.push_back({root, base, *dynamic});
      }
    }
    if (resource_root == nullptr) resources_.emplace(base, &schema);
    if (ref != nullptr) references_.push_back({root, base, *ref});
    if (hides_siblings) {
      // Its definitions can still be the target of a pointer and hold references, as in the root of many documents.
      for (const char* key : {"definitions", "$defs"}) {
        const auto it = schema.find(key);
        if (it == schema.end() || !it->is_object()) continue;
        for (const Json& member : *it) Collect(member, base, root);
      }
      return;
    }
    for (const auto& [key, value] : schema.items()) {
      const Keyword* keyword = FindKeyword(key, draft_);
      if (keyword == nullptr) continue;
      switch (keyword->kind) {
        case Kind::kSchema:
        case Kind::kBoolOrSchema: Collect(value, base, root); break;
        case Kind::kSchemaMap:
        case Kind::kRegexSchemaMap:
        case Kind::kDependencies:
        case Kind::kSchemaList:
          for (const Json& member : value) Collect(member, base, root);
          break;
        case Kind::kSchemaOrList:
          if (value.is_array()) {
            for (const Json& member : value) Collect(member, base, root);
          } else {
            Collect(value, base, root);
          }
          break;
        default: break;
      }
    }
  }

  Status Resolve(const Reference& reference) {
    const size_t hash = reference.target.find('#');
    const std::string document = reference.target.substr(0, hash);
    const std::string fragment = hash == std::string::npos ? "" : PercentDecode(reference.target.substr(hash + 1));
    const Json* root = reference.root;
    std::string base = reference.base;
    if (!document.empty()) {
      base = WithoutFragment(ResolveUri(reference.base, document));
      if (const auto it = resources_.find(base); it != resources_.end()) {
        root = it->second;
      } else if (IsMetaSchemaUri(base)) {
        return Status::Ok();
      } else {
        const std::string reason = HasScheme(base) ? "Retrieval is disabled, cannot fetch " + base
                                                   : std::string("No base URI is available");
        return InvalidArgument(fmt::format(
            "Resource '{}' is not present in a registry and retrieving it failed: {}", base, reason));
      }
    }
    if (fragment.empty()) return Status::Ok();
    if (fragment.front() != '/') {
      if (anchors_.contains(base + "#" + fragment)) return Status::Ok();
      return InvalidArgument(fmt::format("Anchor '{}' does not exist", fragment));
    }
    const Json* target = FollowPointer(*root, fragment);
    if (target == nullptr) return InvalidArgument(fmt::format("Pointer '{}' does not exist", fragment));
    if (target->is_object() || (target->is_boolean() && draft_ != kDraft4)) return Status::Ok();
    return Schema(*target);
  }

  static bool IsMetaSchemaUri(std::string_view uri) {
    if (DraftOf(uri)) return true;
    return uri.find("json-schema.org/draft/2019-09/meta/") != std::string_view::npos ||
           uri.find("json-schema.org/draft/2020-12/meta/") != std::string_view::npos;
  }

  static const Json* FollowPointer(const Json& root, std::string_view pointer) {
    const Json* at = &root;
    while (!pointer.empty()) {
      pointer.remove_prefix(1);  // '/'
      const size_t slash = std::min(pointer.find('/'), pointer.size());
      std::string token;
      for (size_t i = 0; i < slash; ++i) {
        if (pointer[i] == '~' && i + 1 < slash && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
          token += pointer[++i] == '0' ? '~' : '/';
        } else {
          token += pointer[i];
        }
      }
      pointer.remove_prefix(slash);
      if (at->is_object()) {
        const auto it = at->find(token);
        if (it == at->end()) return nullptr;
        at = &*it;
      } else if (at->is_array()) {
        size_t idx = 0;
        if (token.empty() || token.size() > 9 || token.find_first_not_of("0123456789") != std::string::npos) return nullptr;
        for (const char c : token) idx = idx * 10 + static_cast<size_t>(c - '0');
        if (idx >= at->size()) return nullptr;
        at = &(*at)[idx];
      } else {
        return nullptr;
      }
    }
    return at;
  }

  const Json& root_;
  const Draft draft_;
  std::unordered_map<std::string, const Json*> resources_;
  std::unordered_map<std::string, const Json*> anchors_;  // "base#name"
  std::vector<Reference> references_;
};

}  // namespace

Status CheckJsonSchema(const Json& schema) {
  Draft draft = kDraft2020;
  if (schema.is_object()) {
    if (const auto it = schema.find("$schema"); it != schema.end() && it->is_string()) {
      const std::string& uri = it->get_ref<const std::string&>();
      const std::optional<Draft> named = DraftOf(uri);
      if (!named) {
        return InvalidArgument(fmt::format(
            "Unknown meta-schema: '{}'. Custom meta-schemas must be registered in the registry before use", uri));
      }
      draft = *named;
    }
  }
  return SchemaChecker(schema, draft).Run();
}

}  // namespace deepinfer::protocols
