#include "train/data/digits.h"

// The file itself, in the program's read-only data: it is found from anywhere, and needs no
// installation.
asm(R"(
  .section .rodata
  .type brigade_digits_begin, @object
  .type brigade_digits_end, @object
brigade_digits_begin:
  .incbin ")" BRIGADE_DIGITS_CSV R"("
brigade_digits_end:
  .previous
)");
extern "C" {
extern const char brigade_digits_begin[];
extern const char brigade_digits_end[];
}

namespace brigade::tool {

std::string_view digits_text() { return {brigade_digits_begin, brigade_digits_end}; }

}  // namespace brigade::tool
