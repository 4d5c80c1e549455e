// The handwritten digits of data/digits.csv, which are part of the program.
#pragma once
#include "train/data_set.h"

namespace brigade::tool {

// The file's own text.
std::string_view digits_text();
// Features are 64 pixels from 0 to 1, labels 0 to 9.
DataSet digits();

}  // namespace brigade::tool
