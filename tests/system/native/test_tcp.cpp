// Streams between threads of this program: every order of sending, receiving, connecting, closing
// and freeing, for a sanitizer to watch.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>

#include "checks.h"

struct Handle;

extern "C" {
Handle* hocket_tcp_make(int, uint32_t, int64_t, int);
void hocket_tcp_place(Handle*, int, void*);
void hocket_tcp_free(Handle*);
void hocket_tcp_attach(Handle*, int);
void hocket_tcp_close(Handle*);
int hocket_tcp_acquire(Handle*, int64_t, int64_t);
void hocket_tcp_publish(Handle*, int64_t);
int hocket_tcp_lease(Handle*, int64_t, int64_t);
void hocket_tcp_release(Handle*);
int hocket_tcp_ready(Handle*);
void hocket_tcp_watch(Handle*);
}

namespace {

constexpr int64_t kSecond = 1000000000, kSpin = 20000;
constexpr int kTimeout = -1;

struct Pair {
  int writer = -1, reader = -1;
};

// Both ends of a connection over the loopback interface.
Pair connected() {
  Pair pair;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  CHECK(!bind(listener, reinterpret_cast<sockaddr*>(&at), bytes) && !listen(listener, 1));
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &bytes);
  pair.writer = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(!connect(pair.writer, reinterpret_cast<sockaddr*>(&at), bytes));
  pair.reader = accept(listener, nullptr, nullptr);
  close(listener);
  return pair;
}

class Stream {
 public:
  Stream(bool sends, uint32_t slots, int64_t nbytes)
      : nbytes_(nbytes), memory_(slots * nbytes),
        handle_(hocket_tcp_make(sends, slots, nbytes, 0)) {
    for (uint32_t k = 0; k < slots; ++k) hocket_tcp_place(handle_, k, &memory_[k * nbytes]);
  }
  ~Stream() { hocket_tcp_free(handle_); }

  Handle* handle() { return handle_; }

  // Returns false when the stream is closed.
  bool send(int number) {
    const int slot = wait(hocket_tcp_acquire);
    if (slot < 0) return false;
    std::fill_n(memory_.begin() + slot * nbytes_, nbytes_, static_cast<char>(number));
    hocket_tcp_publish(handle_, kSpin);
    return true;
  }

  bool receive(int number) {
    const int slot = wait(hocket_tcp_lease);
    if (slot < 0) return false;
    const auto first = memory_.begin() + slot * nbytes_;
    CHECK(std::all_of(first, first + nbytes_, [=](char x) { return x == static_cast<char>(number); }));
    hocket_tcp_release(handle_);
    return true;
  }

 private:
  template <class Call>
  int wait(Call call) {
    int slot = call(handle_, kSpin, 0);
    for (int k = 0; slot == kTimeout && k < 60; ++k) slot = call(handle_, 0, kSecond / 2);
    CHECK(slot != kTimeout);
    return slot;
  }

  int64_t nbytes_;
  std::vector<char> memory_;
  Handle* handle_;
};

void pause(std::mt19937& random) {
  if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
}

TEST(messages_arrive_whole_and_in_order) {
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const uint32_t slots = 1 + random() % 3;
    const int64_t nbytes = 64 * (seed % 2 ? 1 + random() % 8 : 2000 + random() % 8000);
    const int count = 100;
    Stream writer(true, slots, nbytes), reader(false, slots, nbytes);
    std::thread sending([&] {
      std::mt19937 mine(seed + 100);
      for (int k = 0; k < count; ++k) {
        pause(mine);
        CHECK(writer.send(k));
      }
    });
    const Pair pair = connected();
    hocket_tcp_attach(writer.handle(), pair.writer);
    pause(random);
    hocket_tcp_attach(reader.handle(), pair.reader);
    if (seed % 3 == 0) hocket_tcp_watch(reader.handle());
    for (int k = 0; k < count; ++k) {
      pause(random);
      if (k % 5 == 0) hocket_tcp_ready(reader.handle());
      CHECK(reader.receive(k));
    }
    sending.join();
    CHECK(!hocket_tcp_ready(reader.handle()));
  }
}

TEST(both_sides_send_before_they_receive) {
  constexpr int64_t kBytes = 4 << 20;
  Stream out(true, 1, kBytes), there(false, 1, kBytes), back(true, 1, kBytes), here(false, 1, kBytes);
  const Pair forth = connected(), again = connected();
  hocket_tcp_attach(out.handle(), forth.writer);
  hocket_tcp_attach(there.handle(), forth.reader);
  hocket_tcp_attach(back.handle(), again.writer);
  hocket_tcp_attach(here.handle(), again.reader);
  const auto side = [](Stream& to, Stream& from) {
    for (int k = 0; k < 5; ++k) CHECK(to.send(k) && from.receive(k));
  };
  std::thread other(side, std::ref(back), std::ref(there));
  side(out, here);
  other.join();
}

TEST(closing_at_any_time_ends_both) {
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const int64_t nbytes = 64 * (seed % 2 ? 1 : 20000);
    Stream writer(true, 2, nbytes), reader(false, 2, nbytes);
    const Pair pair = connected();
    std::thread sending([&] {
      for (int k = 0; writer.send(k);) ++k;
    });
    std::thread receiving([&] {
      for (int k = 0; reader.receive(k);) ++k;
    });
    std::thread closing([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      hocket_tcp_close(seed % 4 < 2 ? writer.handle() : reader.handle());
    });
    hocket_tcp_attach(writer.handle(), pair.writer);
    hocket_tcp_attach(reader.handle(), pair.reader);
    sending.join();
    receiving.join();
    closing.join();
  }
}

TEST(an_end_may_go_while_the_pump_is_at_it) {
  for (int seed = 0; seed < 30; ++seed) {
    auto writer = std::make_unique<Stream>(true, 2, 1 << 20);
    auto reader = std::make_unique<Stream>(false, 2, 1 << 20);
    const Pair pair = connected();
    hocket_tcp_attach(writer->handle(), pair.writer);
    hocket_tcp_attach(reader->handle(), pair.reader);
    CHECK(writer->send(0) && writer->send(1));
    if (seed % 3 == 0) CHECK(reader->receive(0));
    (seed % 2 ? writer : reader).reset();
  }
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
