#include "testing/loop.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <utility>

namespace penstock::inline v0::testing::detail {

namespace {

void MustBeZero(int result, const char* what) {
  if (result == 0) return;
  std::fprintf(stderr, "penstock testing: %s: %s\n", what, uv_strerror(result));
  std::abort();
}

}  // namespace

std::shared_ptr<Loop> Loop::Shared() {
  // Never destroyed: static objects of a test may outlive any order we could choose.
  static std::mutex& mutex = *new std::mutex;
  static std::weak_ptr<Loop>& shared = *new std::weak_ptr<Loop>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Loop> loop = shared.lock();
  if (loop == nullptr) {
    loop = std::make_shared<Loop>();
    shared = loop;
  }
  return loop;
}

Loop::Loop() {
  MustBeZero(uv_loop_init(&loop_), "uv_loop_init");
  wake_.data = this;
  MustBeZero(uv_async_init(&loop_, &wake_, [](uv_async_t* wake) { static_cast<Loop*>(wake->data)->Work(); }),
             "uv_async_init");
  // Signals belong to the program that is tested: the thread starts with all of them blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { uv_run(&loop_, UV_RUN_DEFAULT); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Loop::~Loop() {
  // The loop runs on until every handle that is being closed is closed; one that nobody closes is a bug of the kit.
  Post([this] { uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr); });
  thread_.join();
  MustBeZero(uv_loop_close(&loop_), "uv_loop_close");
}

void Loop::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  // Under the lock, so that the loop cannot close the handle between the push and the wake-up.
  uv_async_send(&wake_);
}

void Loop::Run(const std::function<void()>& task) {
  std::promise<void> done;
  Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void Loop::Work() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) task();
}

}  // namespace penstock::inline v0::testing::detail
