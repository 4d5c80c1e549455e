#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "brigade/report.h"
#include "report/tensorboard_records.h"

namespace brigade::report {
namespace {

// The numbers of fields in TensorFlow's event.proto and summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1, kValueSimple = 2;
// The wire types of protobuf's fields.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, int type) {
  return varint(static_cast<unsigned>(field << 3 | type));
}
std::string number(int field, double value) {
  return key(field, kFixed64) + little_endian(value);
}
std::string number(int field, float value) {
  return key(field, kFixed32) + little_endian(value);
}
std::string number(int field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string bytes(int field, std::string_view value) {
  return key(field, kBytes) + varint(value.size()) + std::string(value);
}

// Masking keeps checksums of data good that itself holds checksums.
std::string masked_checksum(std::string_view data) {
  const std::uint32_t checksum = crc32c(data);
  return little_endian(std::rotr(checksum, 15) + 0xa282ead8U);
}

std::string framed(std::string_view event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  return length + masked_checksum(length) + std::string(event) + masked_checksum(event);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string new_file(const std::string& folder) {
  std::filesystem::create_directories(folder);
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return folder + "/events.out.tfevents." + std::to_string(static_cast<long>(now())) + "." +
         host + "." + std::to_string(getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t entry = i;
      for (int bit = 0; bit < 8; ++bit)
        entry = entry & 1 ? entry >> 1 ^ 0x82f63b78U : entry >> 1;
      entries[i] = entry;
    }
    return entries;
  }();
  std::uint32_t sum = ~0U;
  for (const char byte : bytes) {
    sum = sum >> 8 ^ table[(sum ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~sum;
}

std::string tensorboard_header(double wall_time) {
  return framed(number(kEventWallTime, wall_time) +
                bytes(kEventFileVersion, "brain.Event:2"));
}

std::string tensorboard_record(double wall_time, std::int64_t step,
                               const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes(kSummaryValue, bytes(kValueTag, tag) +
                                        number(kValueSimple, static_cast<float>(value)));
  }
  return framed(number(kEventWallTime, wall_time) + number(kEventStep, step) +
                bytes(kEventSummary, summary));
}

std::string tensorboard_text(const Series& series, double wall_time) {
  std::string text = tensorboard_header(wall_time);
  for (const StepPoint& point : series.points) {
    Scalars scalars{{"loss", point.loss},
                    {"step_ms", point.step_ms},
                    {"bytes_sent", static_cast<double>(point.bytes_sent)},
                    {"overlap", point.overlap}};
    if (point.accuracy) scalars.emplace_back("accuracy", *point.accuracy);
    text += tensorboard_record(wall_time + point.seconds, point.step, scalars);
  }
  return text;
}

class TensorBoardWriter::File : public base::RecordFile {
  using RecordFile::RecordFile;
};

TensorBoardWriter::TensorBoardWriter(const std::string& folder)
    : file_(std::make_unique<File>(new_file(folder))) {
  file_->add(tensorboard_header(now()));
}
TensorBoardWriter::~TensorBoardWriter() = default;
TensorBoardWriter::TensorBoardWriter(TensorBoardWriter&&) noexcept = default;
TensorBoardWriter& TensorBoardWriter::operator=(TensorBoardWriter&&) noexcept = default;

void TensorBoardWriter::add(std::int64_t step, const Scalars& scalars) {
  file_->add(tensorboard_record(now(), step, scalars));
}

const std::string& TensorBoardWriter::path() const { return file_->path(); }

}  // namespace brigade::report
