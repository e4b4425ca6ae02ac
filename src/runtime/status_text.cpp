#include "runtime/status_text.h"

namespace penstock::inline v0::detail {
namespace {

std::size_t EncodedSize(char character) noexcept {
  return character >= 0x20 && character <= 0x7e && character != '%' ? 1 : 3;
}

bool IsContinuation(char character) noexcept { return (static_cast<unsigned char>(character) & 0xc0) == 0x80; }

// How many bytes a character takes that starts with this one; 1 for what starts none.
std::size_t SequenceLength(char character) noexcept {
  const auto byte = static_cast<unsigned char>(character);
  if (byte >= 0xf0 && byte <= 0xf4) return 4;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  if (byte >= 0xc2 && byte < 0xe0) return 2;
  return 1;
}

// `end`, or where the character starts that a cut at `end` would split.
std::size_t CharacterBoundary(std::string_view text, std::size_t end) noexcept {
  if (end >= text.size() || !IsContinuation(text[end])) return end;
  for (std::size_t back = 1; back <= 3 && back <= end; ++back) {
    const char character = text[end - back];
    if (!IsContinuation(character)) return SequenceLength(character) > back ? end - back : end;
  }
  return end;
}

}  // namespace

std::size_t EncodedSize(std::string_view text) noexcept {
  std::size_t size = 0;
  for (const char character : text) size += EncodedSize(character);
  return size;
}

std::string CutStatusText(std::string_view text) {
  constexpr std::size_t kRoom = kLongestStatusText - kCutMark.size();  // The mark is plain ASCII.
  std::size_t size = 0;
  std::size_t fits = 0;  // How many bytes fit beside the mark.
  for (const char character : text) {
    size += EncodedSize(character);
    if (size <= kRoom) ++fits;
    if (size > kLongestStatusText) {
      std::string cut(text.substr(0, CharacterBoundary(text, fits)));
      cut += kCutMark;
      return cut;
    }
  }
  return std::string(text);
}

}  // namespace penstock::inline v0::detail
