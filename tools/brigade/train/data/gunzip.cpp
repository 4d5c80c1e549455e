#include "train/data/gunzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "brigade/error.h"

namespace brigade::tool {
namespace {

constexpr std::size_t kLargest = std::size_t{16} << 30;

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw Error("zlib has no memory");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream& operator*() { return stream_; }

 private:
  z_stream stream_{};
};

}  // namespace

std::string gunzip(std::string_view bytes) {
  Inflater inflater;
  z_stream& stream = *inflater;
  std::vector<char> piece(1 << 18);
  std::string text;
  int status = Z_OK;
  while (status != Z_STREAM_END || !bytes.empty() || stream.avail_in > 0) {
    if (status == Z_STREAM_END) inflateReset(&stream);  // one gzip file may follow another
    if (stream.avail_in == 0) {
      const std::size_t count =
          std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max());
      if (count == 0) throw Error("it ends too early");
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(count);
      bytes.remove_prefix(count);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END)
      throw Error(std::string("it is no gzip file, or damaged: ") +
                  (stream.msg ? stream.msg : zError(status)));
    text.append(piece.data(), piece.size() - stream.avail_out);
    if (text.size() > kLargest) throw Error("it unpacks to more than 16 GiB");
  }
  return text;
}

}  // namespace brigade::tool
