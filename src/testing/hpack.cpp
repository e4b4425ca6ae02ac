#include "testing/hpack.h"

#include <array>
#include <optional>

namespace penstock::inline v0::testing::detail {

namespace {

// RFC 7541, appendix A.
const std::array<std::pair<std::string, std::string>, 61>& StaticTable() {
  static const auto& table = *new std::array<std::pair<std::string, std::string>, 61>{{
      {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
      {":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
      {":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
      {"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
      {"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
      {"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
      {"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""}, {"etag", ""},
      {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""}, {"if-modified-since", ""},
      {"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
      {"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
      {"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
      {"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
      {"www-authenticate", ""},
  }};
  return table;
}

struct HuffmanCode {
  std::uint32_t code;
  std::uint8_t bits;
};

// RFC 7541, appendix B: the code of each byte; the last is the end of the string, which must not appear.
constexpr std::array<HuffmanCode, 257> kHuffmanCodes{{
    {0x1ff8, 13}, {0x7fffd8, 23}, {0xfffffe2, 28}, {0xfffffe3, 28}, {0xfffffe4, 28}, {0xfffffe5, 28}, {0xfffffe6, 28},
    {0xfffffe7, 28}, {0xfffffe8, 28}, {0xffffea, 24}, {0x3ffffffc, 30}, {0xfffffe9, 28}, {0xfffffea, 28},
    {0x3ffffffd, 30}, {0xfffffeb, 28}, {0xfffffec, 28}, {0xfffffed, 28}, {0xfffffee, 28}, {0xfffffef, 28},
    {0xffffff0, 28}, {0xffffff1, 28}, {0xffffff2, 28}, {0x3ffffffe, 30}, {0xffffff3, 28}, {0xffffff4, 28},
    {0xffffff5, 28}, {0xffffff6, 28}, {0xffffff7, 28}, {0xffffff8, 28}, {0xffffff9, 28}, {0xffffffa, 28},
    {0xffffffb, 28}, {0x14, 6}, {0x3f8, 10}, {0x3f9, 10}, {0xffa, 12}, {0x1ff9, 13}, {0x15, 6}, {0xf8, 8}, {0x7fa, 11},
    {0x3fa, 10}, {0x3fb, 10}, {0xf9, 8}, {0x7fb, 11}, {0xfa, 8}, {0x16, 6}, {0x17, 6}, {0x18, 6}, {0x0, 5}, {0x1, 5},
    {0x2, 5}, {0x19, 6}, {0x1a, 6}, {0x1b, 6}, {0x1c, 6}, {0x1d, 6}, {0x1e, 6}, {0x1f, 6}, {0x5c, 7}, {0xfb, 8},
    {0x7ffc, 15}, {0x20, 6}, {0xffb, 12}, {0x3fc, 10}, {0x1ffa, 13}, {0x21, 6}, {0x5d, 7}, {0x5e, 7}, {0x5f, 7},
    {0x60, 7}, {0x61, 7}, {0x62, 7}, {0x63, 7}, {0x64, 7}, {0x65, 7}, {0x66, 7}, {0x67, 7}, {0x68, 7}, {0x69, 7},
    {0x6a, 7}, {0x6b, 7}, {0x6c, 7}, {0x6d, 7}, {0x6e, 7}, {0x6f, 7}, {0x70, 7}, {0x71, 7}, {0x72, 7}, {0xfc, 8},
    {0x73, 7}, {0xfd, 8}, {0x1ffb, 13}, {0x7fff0, 19}, {0x1ffc, 13}, {0x3ffc, 14}, {0x22, 6}, {0x7ffd, 15}, {0x3, 5},
    {0x23, 6}, {0x4, 5}, {0x24, 6}, {0x5, 5}, {0x25, 6}, {0x26, 6}, {0x27, 6}, {0x6, 5}, {0x74, 7}, {0x75, 7},
    {0x28, 6}, {0x29, 6}, {0x2a, 6}, {0x7, 5}, {0x2b, 6}, {0x76, 7}, {0x2c, 6}, {0x8, 5}, {0x9, 5}, {0x2d, 6},
    {0x77, 7}, {0x78, 7}, {0x79, 7}, {0x7a, 7}, {0x7b, 7}, {0x7ffe, 15}, {0x7fc, 11}, {0x3ffd, 14}, {0x1ffd, 13},
    {0xffffffc, 28}, {0xfffe6, 20}, {0x3fffd2, 22}, {0xfffe7, 20}, {0xfffe8, 20}, {0x3fffd3, 22}, {0x3fffd4, 22},
    {0x3fffd5, 22}, {0x7fffd9, 23}, {0x3fffd6, 22}, {0x7fffda, 23}, {0x7fffdb, 23}, {0x7fffdc, 23}, {0x7fffdd, 23},
    {0x7fffde, 23}, {0xffffeb, 24}, {0x7fffdf, 23}, {0xffffec, 24}, {0xffffed, 24}, {0x3fffd7, 22}, {0x7fffe0, 23},
    {0xffffee, 24}, {0x7fffe1, 23}, {0x7fffe2, 23}, {0x7fffe3, 23}, {0x7fffe4, 23}, {0x1fffdc, 21}, {0x3fffd8, 22},
    {0x7fffe5, 23}, {0x3fffd9, 22}, {0x7fffe6, 23}, {0x7fffe7, 23}, {0xffffef, 24}, {0x3fffda, 22}, {0x1fffdd, 21},
    {0xfffe9, 20}, {0x3fffdb, 22}, {0x3fffdc, 22}, {0x7fffe8, 23}, {0x7fffe9, 23}, {0x1fffde, 21}, {0x7fffea, 23},
    {0x3fffdd, 22}, {0x3fffde, 22}, {0xfffff0, 24}, {0x1fffdf, 21}, {0x3fffdf, 22}, {0x7fffeb, 23}, {0x7fffec, 23},
    {0x1fffe0, 21}, {0x1fffe1, 21}, {0x3fffe0, 22}, {0x1fffe2, 21}, {0x7fffed, 23}, {0x3fffe1, 22}, {0x7fffee, 23},
    {0x7fffef, 23}, {0xfffea, 20}, {0x3fffe2, 22}, {0x3fffe3, 22}, {0x3fffe4, 22}, {0x7ffff0, 23}, {0x3fffe5, 22},
    {0x3fffe6, 22}, {0x7ffff1, 23}, {0x3ffffe0, 26}, {0x3ffffe1, 26}, {0xfffeb, 20}, {0x7fff1, 19}, {0x3fffe7, 22},
    {0x7ffff2, 23}, {0x3fffe8, 22}, {0x1ffffec, 25}, {0x3ffffe2, 26}, {0x3ffffe3, 26}, {0x3ffffe4, 26}, {0x7ffffde, 27},
    {0x7ffffdf, 27}, {0x3ffffe5, 26}, {0xfffff1, 24}, {0x1ffffed, 25}, {0x7fff2, 19}, {0x1fffe3, 21}, {0x3ffffe6, 26},
    {0x7ffffe0, 27}, {0x7ffffe1, 27}, {0x3ffffe7, 26}, {0x7ffffe2, 27}, {0xfffff2, 24}, {0x1fffe4, 21}, {0x1fffe5, 21},
    {0x3ffffe8, 26}, {0x3ffffe9, 26}, {0xffffffd, 28}, {0x7ffffe3, 27}, {0x7ffffe4, 27}, {0x7ffffe5, 27}, {0xfffec, 20},
    {0xfffff3, 24}, {0xfffed, 20}, {0x1fffe6, 21}, {0x3fffe9, 22}, {0x1fffe7, 21}, {0x1fffe8, 21}, {0x7ffff3, 23},
    {0x3fffea, 22}, {0x3fffeb, 22}, {0x1ffffee, 25}, {0x1ffffef, 25}, {0xfffff4, 24}, {0xfffff5, 24}, {0x3ffffea, 26},
    {0x7ffff4, 23}, {0x3ffffeb, 26}, {0x7ffffe6, 27}, {0x3ffffec, 26}, {0x3ffffed, 26}, {0x7ffffe7, 27},
    {0x7ffffe8, 27}, {0x7ffffe9, 27}, {0x7ffffea, 27}, {0x7ffffeb, 27}, {0xffffffe, 28}, {0x7ffffec, 27},
    {0x7ffffed, 27}, {0x7ffffee, 27}, {0x7ffffef, 27}, {0x7fffff0, 27}, {0x3ffffee, 26}, {0x3fffffff, 30},
}};

constexpr std::size_t kEndOfString = 256;

// The code as a binary tree; node 0 is the root, and a child of 0 is none.
struct HuffmanTree {
  struct Node {
    std::uint16_t child[2] = {0, 0};
    std::uint16_t symbol = 0;
    bool leaf = false;
  };

  HuffmanTree() : nodes(1) {
    for (std::size_t symbol = 0; symbol < kHuffmanCodes.size(); ++symbol) {
      std::size_t at = 0;
      for (int bit = kHuffmanCodes[symbol].bits - 1; bit >= 0; --bit) {
        const unsigned branch = (kHuffmanCodes[symbol].code >> bit) & 1U;
        if (nodes[at].child[branch] == 0) {
          nodes.emplace_back();
          nodes[at].child[branch] = static_cast<std::uint16_t>(nodes.size() - 1);
        }
        at = nodes[at].child[branch];
      }
      nodes[at].leaf = true;
      nodes[at].symbol = static_cast<std::uint16_t>(symbol);
    }
  }

  std::vector<Node> nodes;
};

std::optional<std::string> HuffmanDecode(std::string_view coded) {
  static const HuffmanTree& tree = *new HuffmanTree;
  std::string text;
  std::size_t at = 0;
  int since_symbol = 0;
  bool only_ones = true;
  for (const char c : coded) {
    for (int bit = 7; bit >= 0; --bit) {
      const unsigned branch = (static_cast<unsigned char>(c) >> bit) & 1U;
      at = tree.nodes[at].child[branch];
      if (at == 0) return std::nullopt;
      ++since_symbol;
      only_ones = only_ones && branch == 1;
      if (!tree.nodes[at].leaf) continue;
      if (tree.nodes[at].symbol == kEndOfString) return std::nullopt;
      text.push_back(static_cast<char>(tree.nodes[at].symbol));
      at = 0;
      since_symbol = 0;
      only_ones = true;
    }
  }
  // 5.2: what is left is padding, shorter than a byte and the beginning of the end of the string, which is all ones.
  if (since_symbol > 7 || !only_ones) return std::nullopt;
  return text;
}

// Reads the primitive types of section 5.
class Reader {
 public:
  explicit Reader(std::string_view block) : rest_(block) {}

  bool done() const { return rest_.empty(); }
  std::uint8_t Peek() const { return static_cast<std::uint8_t>(rest_.front()); }

  std::optional<std::uint64_t> Integer(int prefix_bits) {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t most = (std::uint64_t{1} << prefix_bits) - 1;
    std::uint64_t value = Take() & most;
    if (value < most) return value;
    // Four bytes of seven bits are more than any length or index here.
    for (int shift = 0; shift <= 21; shift += 7) {
      if (rest_.empty()) return std::nullopt;
      const std::uint8_t byte = Take();
      value += std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80U) == 0) return value;
    }
    return std::nullopt;
  }

  std::optional<std::string> String() {
    if (rest_.empty()) return std::nullopt;
    const bool huffman = (Peek() & 0x80U) != 0;
    const std::optional<std::uint64_t> length = Integer(7);
    if (!length.has_value() || *length > rest_.size()) return std::nullopt;
    const std::string_view bytes = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return huffman ? HuffmanDecode(bytes) : std::optional<std::string>(bytes);
  }

 private:
  std::uint8_t Take() {
    const std::uint8_t byte = Peek();
    rest_.remove_prefix(1);
    return byte;
  }

  std::string_view rest_;
};

// 4.1: what an entry counts beyond its bytes.
constexpr std::size_t kEntryOverhead = 32;

void AppendInteger(std::string& out, std::size_t value) {
  constexpr std::size_t kMost = 127;
  if (value < kMost) {
    out.push_back(static_cast<char>(value));
    return;
  }
  out.push_back(static_cast<char>(kMost));
  for (value -= kMost; value >= 128; value /= 128) out.push_back(static_cast<char>(value % 128 + 128));
  out.push_back(static_cast<char>(value));
}

void AppendString(std::string& out, std::string_view text) {
  AppendInteger(out, text.size());
  out.append(text);
}

}  // namespace

bool HpackDecoder::Decode(std::string_view block, HeaderList& headers) {
  Reader reader(block);
  while (!reader.done()) {
    const std::uint8_t first = reader.Peek();
    if ((first & 0x80U) != 0) {  // 6.1: an indexed field
      const auto index = reader.Integer(7);
      const auto* field = index.has_value() ? Lookup(*index) : nullptr;
      if (field == nullptr) return false;
      headers.push_back(*field);
      continue;
    }
    if ((first & 0xe0U) == 0x20U) {  // 6.3: a new size of the table
      const auto size = reader.Integer(5);
      if (!size.has_value() || *size > kMostTableSize) return false;
      max_table_size_ = *size;
      Evict();
      continue;
    }
    const bool index_it = (first & 0xc0U) == 0x40U;  // 6.2.1; else 6.2.2 or 6.2.3
    const auto name_index = reader.Integer(index_it ? 6 : 4);
    if (!name_index.has_value()) return false;
    std::pair<std::string, std::string> field;
    if (*name_index == 0) {
      auto name = reader.String();
      if (!name.has_value()) return false;
      field.first = std::move(*name);
    } else {
      const auto* known = Lookup(*name_index);
      if (known == nullptr) return false;
      field.first = known->first;
    }
    auto value = reader.String();
    if (!value.has_value()) return false;
    field.second = std::move(*value);
    if (index_it) Insert(field);
    headers.push_back(std::move(field));
  }
  return true;
}

const std::pair<std::string, std::string>* HpackDecoder::Lookup(std::uint64_t index) const {
  if (index == 0) return nullptr;
  const auto& fixed = StaticTable();
  if (index <= fixed.size()) return &fixed[index - 1];
  index -= fixed.size() + 1;
  return index < table_.size() ? &table_[index] : nullptr;
}

void HpackDecoder::Insert(const std::pair<std::string, std::string>& field) {
  table_.push_front(field);
  table_size_ += field.first.size() + field.second.size() + kEntryOverhead;
  Evict();
}

void HpackDecoder::Evict() {
  while (table_size_ > max_table_size_) {
    table_size_ -= table_.back().first.size() + table_.back().second.size() + kEntryOverhead;
    table_.pop_back();
  }
}

std::string HpackEncode(const HeaderList& headers) {
  std::string block;
  for (const auto& [name, value] : headers) {
    block.push_back('\0');
    AppendString(block, name);
    AppendString(block, value);
  }
  return block;
}

}  // namespace penstock::inline v0::testing::detail
