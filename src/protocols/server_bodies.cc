// SPDX-License-Identifier: Apache-2.0
#include "protocols/server_bodies.h"

#include <ctime>

#include <fmt/format.h>

#include "protocols/json_reader.h"
#include "protocols/json_text.h"

namespace deepinfer::protocols {

namespace {

std::string Rfc3339(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

}  // namespace

std::string ModelBody(const ServedModel& model) {
  const std::string id = JsonString(model.id);
  return fmt::format(R"({{"id":{0},"object":"model","created":{1},"owned_by":"deepseek","type":"model","display_name":{0},)"
                     R"("created_at":"{2}","lifecycle":"active","max_model_len":{3}}})",
                     id, model.created, Rfc3339(model.created), model.max_model_len);
}

std::string ModelListBody(std::span<const ServedModel> models) {
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < models.size(); ++i) {
    if (i > 0) out += ',';
    out += ModelBody(models[i]);
  }
  out += R"(],"has_more":false,"first_id":)";
  out += models.empty() ? "null" : JsonString(models.front().id);
  out += R"(,"last_id":)";
  out += models.empty() ? "null" : JsonString(models.back().id);
  out += '}';
  return out;
}

Result<TokenizeRequest> ParseTokenizeRequest(const Json& body) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  TokenizeRequest request;
  request.text = reader.RequiredString("text");
  request.parse_special = reader.Bool("parse_special").value_or(true);
  if (!reader.ok()) return reader.status();
  return request;
}

std::string TokenizeBody(std::span<const int32_t> ids) {
  std::string out = R"({"ids":[)";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonInt(ids[i], out);
  }
  out += "]}";
  return out;
}

Result<std::vector<int32_t>> ParseDetokenizeRequest(const Json& body, int vocab_size) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  const Json* list = reader.Array("ids");
  if (list == nullptr) reader.Fail("", "missing field `ids`");
  if (!reader.ok()) return reader.status();
  std::vector<int32_t> ids;
  for (const Json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return InvalidArgument(fmt::format("ids: {} is no token id; the model has {}", DumpJson(id), vocab_size), "ids");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string DetokenizeBody(std::string_view text) { return R"({"text":)" + JsonString(text) + "}"; }

}  // namespace deepinfer::protocols
