// The library's texts of numbers, by their short names.
#pragma once
#include "base/number_text.h"

namespace brigade::tool {

using base::bytes_text;
using base::decimals;
using base::ms_text;
using base::rate_text;
using base::readable;
using base::size_text;
using base::with_sign;

}  // namespace brigade::tool
