#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/hash.h"
#include "brigade/data.h"
#include "brigade/error.h"

namespace brigade {
namespace {

// A batch, or the error that prevented it; with neither, the epoch has ended.
struct Prepared {
  std::uint64_t epoch_after = 0;
  std::size_t position_after = 0;
  std::shared_ptr<void> batch;
  std::exception_ptr failed;
};

void check(const DataLoaderOptions& options) {
  if (options.batch_size == 0)
    throw ConfigError("DataLoaderOptions::batch_size is 0; it must be 1 or more");
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    throw ConfigError("DataLoaderOptions::timeout is " +
                      std::to_string(options.timeout.count()) +
                      " ms; it must be more than 0");
  }
}

}  // namespace

class DataLoaderBase::State {
 public:
  State(DistributedSampler sampler, Make make, const DataLoaderOptions& options)
      : sampler_(std::move(sampler)), make_(std::move(make)), options_(options) {
    check(options);
    epoch_ = sampler_.epoch();
    position_ = sampler_.position();
  }
  ~State() { stop(); }

  std::shared_ptr<void> take() {
    Prepared prepared = options_.prefetch == 0 ? prepare() : wait_for_one();
    if (prepared.failed) {
      // The position stays, so that the same batch is tried again.
      seek(epoch_, position_);
      std::rethrow_exception(prepared.failed);
    }
    epoch_ = prepared.epoch_after;
    position_ = prepared.position_after;
    return std::move(prepared.batch);
  }

  void seek(std::uint64_t epoch, std::size_t position) {
    stop();
    ready_.clear();
    sampler_.set_epoch(epoch);
    if (position > 0) sampler_.next(position);
    epoch_ = epoch;
    position_ = sampler_.position();
  }

  std::uint64_t epoch() const { return epoch_; }
  std::size_t position() const { return position_; }
  std::size_t size() const { return sampler_.size(); }
  std::size_t batches() const {
    const std::size_t whole = size() / options_.batch_size;
    return whole + (!options_.drop_last && size() % options_.batch_size != 0 ? 1 : 0);
  }

 private:
  bool epoch_is_over() const {
    const std::size_t left = sampler_.size() - sampler_.position();
    return left == 0 || (options_.drop_last && left < options_.batch_size);
  }

  // The sampler is ahead of the training loop; only the preparing thread touches it.
  Prepared prepare() {
    if (epoch_is_over()) {
      sampler_.set_epoch(sampler_.epoch() + 1);
      return {.epoch_after = sampler_.epoch()};
    }
    BatchRequest wanted{.epoch = sampler_.epoch(), .position = sampler_.position()};
    wanted.indices = *sampler_.next(options_.batch_size);
    wanted.seed = seed_of(wanted);
    Prepared prepared{.epoch_after = sampler_.epoch(),
                      .position_after = sampler_.position()};
    try {
      prepared.batch = make_(wanted);
    } catch (...) {
      prepared.failed = std::current_exception();
    }
    return prepared;
  }

  std::uint64_t seed_of(const BatchRequest& wanted) const {
    const std::uint64_t place[] = {sampler_.seed(), wanted.epoch, wanted.position,
                                   sampler_.rank()};
    return base::hash64(
        std::string_view(reinterpret_cast<const char*>(place), sizeof place));
  }

  Prepared wait_for_one() {
    if (!worker_.joinable()) worker_ = std::thread([this] { work_ahead(); });
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, options_.timeout, [this] { return !ready_.empty(); })) {
      throw TimeoutError("DataLoader: the batch at sample " + std::to_string(position_) +
                         " of epoch " + std::to_string(epoch_) + " was not made within " +
                         std::to_string(options_.timeout.count()) +
                         " ms (DataLoaderOptions::timeout)");
    }
    Prepared prepared = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return prepared;
  }

  void work_ahead() {
    std::unique_lock lock(mutex_);
    for (bool failed = false; !failed;) {
      // There is no time limit: the training loop may take any time for a step.
      changed_.wait(lock,
                    [this] { return stopping_ || ready_.size() < options_.prefetch; });
      if (stopping_) return;
      lock.unlock();
      Prepared prepared = prepare();
      failed = prepared.failed != nullptr;
      lock.lock();
      ready_.push_back(std::move(prepared));
      changed_.notify_all();
    }
  }

  void stop() {
    if (!worker_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    worker_.join();
    stopping_ = false;
  }

  DistributedSampler sampler_;
  const Make make_;
  const DataLoaderOptions options_;
  std::uint64_t epoch_ = 0;  // the training loop's, as is position_
  std::size_t position_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Prepared> ready_;
  bool stopping_ = false;
  std::thread worker_;
};

DataLoaderBase::DataLoaderBase(DistributedSampler sampler, Make make,
                               const DataLoaderOptions& options)
    : state_(std::make_unique<State>(std::move(sampler), std::move(make), options)) {}
DataLoaderBase::~DataLoaderBase() = default;
DataLoaderBase::DataLoaderBase(DataLoaderBase&&) noexcept = default;
DataLoaderBase& DataLoaderBase::operator=(DataLoaderBase&&) noexcept = default;

std::shared_ptr<void> DataLoaderBase::take() { return state_->take(); }
std::uint64_t DataLoaderBase::epoch() const { return state_->epoch(); }
std::size_t DataLoaderBase::position() const { return state_->position(); }
std::size_t DataLoaderBase::size() const { return state_->size(); }
std::size_t DataLoaderBase::batches() const { return state_->batches(); }
void DataLoaderBase::seek(std::uint64_t epoch, std::size_t position) {
  state_->seek(epoch, position);
}

}  // namespace brigade
