#pragma once

#include <random>
#include <regex>
#include <set>

#include "tests/rules_proof/sample.h"

/// The same call in other sizes: a dim of 1, an empty one, one that 2 and 4 ranks split evenly.
///
///   aten::mm 5x6 6x4   ->   aten::mm 5x1 1x4,  aten::mm 0x6 6x4,  aten::mm 5x6 6x8
namespace tessera::test {

/// Attributes that repeat a size of an operand.
inline bool repeats_sizes(std::string_view attribute) {
  static const std::set<std::string_view> kNames = {
      "size",       "shape",       "input_sizes", "input_size", "normalized_shape",
      "bias_sizes", "num_weights", "N",           "C",          "split_sizes",
      "max_q",      "max_k"};
  return kNames.contains(attribute);
}

/// Every dim of size `from` in a word gets the size `to`.
inline std::string resized(const std::string& word, const c10::FunctionSchema& schema, int64_t from,
                           int64_t to) {
  const size_t equals = word.find('=');
  const std::string name = equals == std::string::npos ? "" : word.substr(0, equals);
  if (!name.empty() && !repeats_sizes(name)) {
    const auto index = schema.argumentIndexWithName(name);
    if (!index || !is_tensor_type(schema.arguments()[static_cast<size_t>(*index)].type()))
      return word;
  }
  std::string out = word.substr(0, name.empty() ? 0 : equals + 1);
  for (size_t i = out.size(); i < word.size();) {
    size_t end = i;
    while (end < word.size() && std::isdigit(static_cast<unsigned char>(word[end])) != 0) ++end;
    if (end == i) {
      out += word[i++];
      continue;
    }
    const std::string number = word.substr(i, end - i);
    const char before = i == 0 ? ' ' : word[i - 1];
    const bool of_type = std::isalpha(static_cast<unsigned char>(before)) != 0 && before != 'x';
    out += !of_type && number == std::to_string(from) ? std::to_string(to) : number;
    i = end;
  }
  return out;
}

inline std::string resized_line(const std::string& line, int64_t from, int64_t to) {
  const auto words = split_text(line, ' ');
  const c10::OperatorHandle op = find_op(words[0]);
  const auto& schema = op.schema();
  std::string out = words[0];
  for (size_t i = 1; i < words.size(); ++i) out += " " + resized(words[i], schema, from, to);
  return out;
}

/// Plain kernels that take sizes on trust: some end the process on an empty dim or read what is
/// not there, some give a result of another shape than they should.
inline bool trusts_sizes(std::string_view line) {
  for (const char* op :
       {"flash_attention_for_cpu", "_adaptive_avg_pool3d_backward", "slow_conv",
        "native_batch_norm_backward", "_reshape_alias", "slice_backward", "addmv scalar",
        "_cdist_forward", "convolution", "pixel_unshuffle", "embedding_bag", "_masked_softmax"}) {
    if (line.find(op) != std::string_view::npos) return true;
  }
  // Where a pool found its maxima is not looked at twice.
  return line.find(":maxima") != std::string_view::npos ||
         (line.find("pool") != std::string_view::npos &&
          line.find(":i64") != std::string_view::npos);
}

/// One line for each kind of size, with a dim drawn by seed; not all of them are calls that work.
inline std::vector<std::string> size_variants(const std::string& line, std::mt19937& rng) {
  std::vector<int64_t> sizes;
  static const std::regex kShape(R"((?:^|[ \[;=])([0-9]+(?:x[0-9]+)*)(?=$|[ :;\]]))");
  for (std::sregex_iterator it(line.begin(), line.end(), kShape), end; it != end; ++it) {
    for (const auto& n : split_text((*it)[1].str(), 'x')) sizes.push_back(std::stoll(n));
  }
  std::erase_if(sizes, [](int64_t n) { return n < 2; });
  std::vector<std::string> out;
  if (sizes.empty() || trusts_sizes(line)) return out;
  for (const int64_t to : {1, 0, 8}) {
    const std::string other = resized_line(line, sizes[rng() % sizes.size()], to);
    if (other != line) out.push_back(other);
  }
  return out;
}

}  // namespace tessera::test
