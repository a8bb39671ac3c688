//! The routes of a listener as a list. Its router is made of that, and so are the tests that have to know every route.

use crate::serve::mesh::no_route;
use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::Method;

/// One route.
pub(super) struct Route<S> {
    /// With which method.
    #[cfg_attr(not(test), expect(dead_code, reason = "the router knows it by its handler; tests ask"))]
    pub(super) method: Method,
    /// Where.
    pub(super) path: &'static str,
    handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Route<S> {
    /// What is asked.
    pub(super) fn get<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self { method: Method::GET, path, handler: on(MethodFilter::GET, handler) }
    }

    /// What is to be done.
    pub(super) fn post<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self { method: Method::POST, path, handler: on(MethodFilter::POST, handler) }
    }

    /// What is to be gone.
    pub(super) fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self { method: Method::DELETE, path, handler: on(MethodFilter::DELETE, handler) }
    }
}

/// Serves these, and nothing else.
pub(super) fn router<S: Clone + Send + Sync + 'static>(routes: Vec<Route<S>>, state: S) -> Router {
    let serve = |router: Router<S>, route: Route<S>| router.route(route.path, route.handler);
    let router = routes.into_iter().fold(Router::new(), serve);
    router.fallback(no_route).method_not_allowed_fallback(no_route).with_state(state)
}
