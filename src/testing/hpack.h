#pragma once

// Header compression (RFC 7541), as much as a test peer needs: everything is decoded, the dynamic table and the Huffman
// code included; what is encoded is spelled out literally and enters no table.
//
// Threads: a decoder belongs to one direction of one connection, and to one thread at a time.
// Errors: Decode says false on a block that breaks the rules; the decoder is of no further use then.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::inline v0::testing::detail {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

class HpackDecoder {
 public:
  // Appends the block's fields to `headers`, in their order.
  [[nodiscard]] bool Decode(std::string_view block, HeaderList& headers);

 private:
  const std::pair<std::string, std::string>* Lookup(std::uint64_t index) const;
  void Insert(const std::pair<std::string, std::string>& field);
  void Evict();

  // RFC 7541, 4.2: what SETTINGS_HEADER_TABLE_SIZE allows unless it was changed; the kit's peers do not change it, and
  // what a peer asks for beyond a megabyte is an error.
  static constexpr std::size_t kMostTableSize = std::size_t{1} << 20;

  std::deque<std::pair<std::string, std::string>> table_;  // newest first
  std::size_t table_size_ = 0;
  std::size_t max_table_size_ = 4096;
};

// Literal fields without indexing (6.2.2), names and values as they are.
std::string HpackEncode(const HeaderList& headers);

}  // namespace penstock::inline v0::testing::detail
