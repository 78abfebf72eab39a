#include "turns.h"

#include <rte_alarm.h>
#include <semaphore.h>
#include <time.h>

#include <cerrno>
#include <stdexcept>

namespace hocket {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(1), kEveryBusy = std::chrono::milliseconds(10);
constexpr uint64_t kMomentUs = 20;
constexpr time_t kPatience = 10;

bool taken = false;
Clock::time_point given{};
sem_t stands, may_run;  // never destroyed, since EAL's thread may still wait when the process ends

// Runs on EAL's thread, which does the work of its drivers between two calls.
void stand(void*) {
  sem_post(&stands);
  while (sem_wait(&may_run) && errno == EINTR) {
  }
  rte_eal_alarm_set(kMomentUs, stand, nullptr);
}

void wait_until_it_stands() {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += kPatience;
  while (sem_clockwait(&stands, CLOCK_MONOTONIC, &until)) {
    if (errno == EINTR) continue;
    throw std::runtime_error("a driver of DPDK has been connecting or disconnecting for " +
                             std::to_string(kPatience) + " s: is the other end stopped?");
  }
}

}  // namespace

void take_turns() {
  sem_init(&stands, 0, 0);
  sem_init(&may_run, 0, 0);
  if (const int error = rte_eal_alarm_set(kMomentUs, stand, nullptr)) {
    throw std::runtime_error("DPDK sets no alarm: " + std::to_string(error));
  }
  taken = true;
  wait_until_it_stands();
}

void give_turn(bool busy, Clock::time_point now) {
  if (!taken || now - given < (busy ? kEveryBusy : kEvery)) return;
  given = now;
  sem_post(&may_run);
  wait_until_it_stands();
}

}  // namespace hocket
