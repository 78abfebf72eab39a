// Clients of a replay server: over a stream of bytes, or through memory shared with it.
//
// Threads may share a client, and several requests may be under way. A thread that waits for its
// reply also reads those of the others.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "desk.h"
#include "region.h"
#include "wire.h"

namespace hocket {

// The server is gone, or cannot be reached.
struct Gone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The request cannot be sent to this server.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The time in `seconds` from now.
inline Clock::time_point after(double seconds) {
  if (seconds > 1e9) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
}

struct In {
  const void* data;
  uint64_t bytes;
};

struct Out {
  void* data;  // null for bytes that nobody wants
  uint64_t bytes;
};

// A request under way. It must stay at its address until it is answered or abandoned.
struct Call {
  Header header;             // of the request, and later of the reply
  std::vector<Out> outs;     // where the parts of a reply go; each begins at a multiple of 64 bytes
  uint64_t reply_bytes = 0;  // the most that a reply has; without `outs`, it stays in its slot
  std::string text;          // of a reply that is not ok, or has no parts
  uint8_t* body = nullptr;   // of a reply that stayed in its slot, until `release`
  bool is_done = false, is_filling = false;
  void* region = nullptr;    // the shared memory that has the slot
  uint32_t slot = 0;
};

class Client {
 public:
  virtual ~Client() = default;

  // These throw Gone, and `ask` also Refused. The parts of a request follow each other directly.
  virtual void ask(Call& call, const std::vector<In>& parts) = 0;
  virtual bool wait(Call& call, Clock::time_point until) = 0;  // true if it was answered by then
  virtual void abandon(Call& call) = 0;                        // nobody waits for the reply now
  virtual void release(Call&) {}                               // frees a reply that has stayed
  virtual bool may_stay() { return false; }                    // true if a reply may stay
  virtual void close() = 0;  // ends all calls that wait, and all later ones, with an error
  virtual const std::string& server() const = 0;  // the address, for people
};

// Over UDP. Throws Gone.
std::unique_ptr<Client> udp_client(const std::string& host, uint16_t port);

class StreamClient final : public Client {
 public:
  StreamClient(int file, std::string server);
  ~StreamClient() override;

  static std::unique_ptr<StreamClient> tcp(const std::string& host, uint16_t port, double seconds);
  static std::unique_ptr<StreamClient> unix_socket(const std::string& path);

  void ask(Call& call, const std::vector<In>& parts) override;
  bool wait(Call& call, Clock::time_point until) override;
  void abandon(Call& call) override;
  void close() override;

  // Sends files with the request, over a Unix socket.
  void ask_with(Call& call, const In& part, const std::vector<int>& files);
  void check_alive();
  const std::string& server() const override { return server_; }

 private:
  void begin(Call& call);
  void send_all(std::vector<In> parts);
  void wait_to_send();
  void read_until(const Call& call, Clock::time_point until);
  void forget(std::unique_lock<std::mutex>& lock, Call& call);
  bool read_more(Clock::time_point until);
  void begin_reply();
  void end_reply();
  void fail(const std::string& why);

  int file_;
  std::string server_;
  std::mutex sending_, mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Call*> calls_;
  uint64_t next_request_ = 1;
  bool is_reading_ = false;
  std::string broken_;

  // For the thread that reads: the reply that is coming in, and where its next bytes go.
  Header incoming_;
  uint64_t got_ = 0;
  Call* into_ = nullptr;
  std::vector<Out> rest_;
  size_t next_ = 0;
  std::string text_;
  uint8_t waste_[1 << 16];  // for bytes that nobody wants
};

class SharedClient final : public Client {
 public:
  // `seconds` is how long the server may take to map memory.
  SharedClient(std::unique_ptr<StreamClient> control, uint32_t slots, double seconds);
  ~SharedClient() override;

  void ask(Call& call, const std::vector<In>& parts) override;
  bool wait(Call& call, Clock::time_point until) override;
  void abandon(Call& call) override;
  void release(Call& call) override;
  bool may_stay() override;
  void close() override;
  const std::string& server() const override { return control_->server(); }

 private:
  struct Mapping {
    Region region;
    void* base = nullptr;
    int bell = -1;
    uint64_t free = 0;       // a bit for each free slot
    uint64_t abandoned = 0;  // a bit for each slot that will be free when it is answered
    ~Mapping();
    RegionHead* head() const { return static_cast<RegionHead*>(base); }
  };

  Mapping* free_slot(uint64_t request_bytes, uint64_t reply_bytes, uint32_t& slot);
  void map(uint64_t request_bytes, uint64_t reply_bytes);
  void check_alive();
  void give_back(Mapping& mapping, uint32_t slot);

  std::unique_ptr<StreamClient> control_;
  uint32_t slots_;
  double seconds_;
  std::mutex mutex_, mapping_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  uint32_t stayed_ = 0;  // the number of replies that are still in their slots
  std::atomic<bool> closed_{false};
};

}  // namespace hocket
