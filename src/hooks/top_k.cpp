#include <c10/util/StringUtil.h>

#include "codec/codecs.h"
#include "hooks/int8.h"
#include "hooks/ratio.h"
#include "hooks/sparsified.h"

namespace brigade {

std::shared_ptr<Hook> make_top_k(double ratio, bool flat) {
  check_ratio("topk", ratio);
  return make_with_feedback(make_top_k_codec(ratio), flat, c10::str("ratio=", ratio));
}

}  // namespace brigade
