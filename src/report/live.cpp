#include "brigade/report/live.h"

#include <cmath>

#include "group/live/rank_page.h"

namespace brigade::report {

void show_loss(double loss) {
  auto* page = group::RankPage::of_this_process();
  if (!page) return;
  page->update([&](group::RankStatus& status) {
    ++status.losses;
    status.loss = loss;
    if (!std::isfinite(loss)) ++status.bad_losses;
  });
}

}  // namespace brigade::report
