// Numbers and amounts as people read them.
#pragma once
#include <string>

namespace brigade::base {

// "0.250"; "n/a" for NaN and infinity.
std::string decimals(double value, int places);
// "+0.3", "-1.2"
std::string with_sign(double value, int places);
// "1,438", "0.0056", "12.3"
std::string readable(double value);
// Three digits, for columns of times: "4.60", "93.7", "120".
std::string ms_text(double ms);
// By powers of 1000: "3.2 MB".
std::string bytes_text(double bytes);
// By powers of 1024: "64 KiB", "16 MiB".
std::string size_text(double bytes);
// "100 Mbit/s"
std::string rate_text(double bits_per_second);

}  // namespace brigade::base
