#include "tables.h"

#include <cmath>
#include <map>
#include <sstream>
#include <stdexcept>

namespace hocket {
namespace {

const std::map<std::string, uint64_t>& dtypes() {
  static const std::map<std::string, uint64_t> bytes = {
      {"bool", 1},    {"int8", 1},    {"uint8", 1},     {"int16", 2},     {"uint16", 2},
      {"int32", 4},   {"uint32", 4},  {"int64", 8},     {"uint64", 8},    {"float16", 2},
      {"float32", 4}, {"float64", 8}, {"bfloat16", 2},  {"complex64", 8}, {"complex128", 16},
  };
  return bytes;
}

[[noreturn]] void no_column(const std::string& word) {
  throw std::invalid_argument("`" + word + "` is no column. Write name:dtype:shape, such as "
                              "obs:float32:4 or image:uint8:84x84x3; name:dtype for one number a "
                              "row, such as action:int32; image:uint8:84x84*4 for four frames");
}

uint64_t positive(const std::string& text, const std::string& word) {
  if (text.empty() || text.size() > 9 ||
      text.find_first_not_of("0123456789") != std::string::npos || std::stoull(text) == 0) {
    no_column(word);
  }
  return std::stoull(text);
}

Column parse_column(const std::string& word) {
  std::string rest = word;
  Column column{1};
  if (const size_t star = rest.rfind('*'); star != std::string::npos) {
    column.frames = static_cast<uint32_t>(positive(rest.substr(star + 1), word));
    rest.resize(star);
  }
  const size_t first = rest.find(':');
  if (first == std::string::npos || first == 0) no_column(word);
  const size_t second = rest.find(':', first + 1);
  const std::string dtype = rest.substr(first + 1, second - first - 1);
  const auto found = dtypes().find(dtype);
  if (found == dtypes().end()) {
    std::string all;
    for (const auto& each : dtypes()) all += (all.empty() ? "" : ", ") + each.first;
    throw std::invalid_argument("column `" + rest.substr(0, first) + "` has the unknown dtype `" +
                                dtype + "`. Use one of " + all);
  }
  column.bytes = found->second;
  if (second == std::string::npos || second + 1 == rest.size()) return column;
  std::istringstream sizes(rest.substr(second + 1) + "x");
  uint64_t axes = 0;
  for (std::string size; std::getline(sizes, size, 'x'); ++axes) {
    column.bytes *= positive(size, word);
    if (column.bytes > UINT32_MAX) {
      throw std::invalid_argument("column `" + word + "` has more than 4 GiB in a row");
    }
  }
  if (!axes) no_column(word);
  return column;
}

Select parse_select(const std::string& option, const std::string& name) {
  const char* names[] = {"prioritized", "uniform", "oldest", "newest", "highest", "lowest"};
  for (int i = 0; i < 6; ++i) {
    if (name == names[i]) return static_cast<Select>(i);
  }
  throw std::invalid_argument("there is no " + option + " `" + name + "`: there are prioritized, "
                              "uniform, oldest, newest, highest and lowest");
}

}  // namespace

std::vector<Column> parse_schema(const std::string& schema) {
  std::vector<Column> columns;
  std::istringstream words(schema);
  for (std::string word; words >> word;) columns.push_back(parse_column(word));
  if (columns.empty()) {
    throw std::invalid_argument("--schema says what a row is, such as obs:float32:4 action:int32");
  }
  return columns;
}

void TableFlags::add_to(Flags& flags) {
  flags.add("schema", "the columns, as name:dtype:shape: obs:float32:4 image:uint8:84x84*4",
            [this](const std::string& word) { schema += (schema.empty() ? "" : " ") + word; });
  flags.add("capacity", "rows that there may be (1000000)", capacity);
  flags.add("name", "what the table is called (replay)", name);
  flags.add("sampler", "which rows are drawn (prioritized)", sampler);
  flags.add("remover", "which rows make room (oldest)", remover);
  flags.add("max-times-sampled", "draws before a row is removed; 0 for any", max_times_sampled);
  flags.add("min-size", "rows before the first sample (1)", min_size);
  flags.add("samples-per-insert", "rows sampled for each one inserted", samples_per_insert);
  flags.add("tolerance", "by how many samples one may be ahead", tolerance);
  flags.add("num-frames", "frames that are kept; by default twice the capacity", num_frames);
  flags.add("seed", "of the draws (0)", seed);
}

Served TableFlags::open() const {
  Options options;
  options.columns = parse_schema(schema);
  options.capacity = capacity;
  options.sampler = parse_select("sampler", sampler);
  options.remover = parse_select("remover", remover);
  options.max_times_sampled = static_cast<uint32_t>(max_times_sampled);
  options.seed = seed;
  for (const Column& column : options.columns) {
    if (column.frames) options.num_frames = num_frames ? num_frames : 2 * capacity;
  }
  options.limits.min_size = min_size;
  if ((samples_per_insert != 0.0) != (tolerance >= 0.0)) {
    throw std::invalid_argument("--samples-per-insert and --tolerance go together: how many "
                                "samples inserting and sampling may be ahead of each other");
  }
  if (samples_per_insert != 0.0) {
    const double middle = static_cast<double>(min_size) * samples_per_insert;
    options.limits.samples_per_insert = samples_per_insert;
    options.limits.least = middle - tolerance;
    options.limits.most = middle + tolerance;
  }
  const std::string problem = Table::problem(options);
  if (!problem.empty()) throw std::invalid_argument(problem);
  return {name, schema, std::make_shared<Shared>(std::make_unique<Table>(options)), "", ""};
}

}  // namespace hocket
