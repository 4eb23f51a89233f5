// The tokens of this server, which the tab keeps, and the addresses of its pages.

const KEPT = "edl-token"; // in this tab only, and for this address and port only
const ACTIONS = "edl-actions"; // the token with which pages may change something

/** Return the token in the address, which is removed from there, or else the kept one. */
export function givenToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get("token");
  if (token) {
    keepToken(token);
    if (given.get("actions")) sessionStorage.setItem(ACTIONS, given.get("actions"));
    history.replaceState(null, "", location.pathname);
  }
  return token ?? sessionStorage.getItem(KEPT) ?? "";
}

/** Keep the token for other pages of this server in this tab. */
export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

/** Forget the tokens, because the server refuses them. */
export function forgetToken() {
  sessionStorage.removeItem(KEPT);
  sessionStorage.removeItem(ACTIONS);
}

/** Return the token for actions; empty: the page only reads. */
export function actionToken() {
  return sessionStorage.getItem(ACTIONS) ?? "";
}

/** Return the token in what somebody has typed: an address, or the token alone. */
export function typedToken(text) {
  const given = new URLSearchParams(text.slice(text.indexOf("#") + 1).trim());
  if (given.get("actions")) sessionStorage.setItem(ACTIONS, given.get("actions"));
  return (given.get("token") ?? text).trim();
}

function withTokens(path, token) {
  const actions = actionToken();
  return `${path}#token=${token}${actions ? `&actions=${actions}` : ""}`;
}

/** Return the address of the page of a job of the cluster; a new tab needs the tokens there, too. */
export function jobAddress(job, token) {
  return withTokens(`/jobs/${encodeURIComponent(job)}/`, token);
}

/** Return the address of the page of the cluster. */
export function clusterAddress(token) {
  return withTokens("/", token);
}
